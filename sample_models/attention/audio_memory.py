"""Recall a spoken digit from a memory of frames: dot-product attention in float16 autocast; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class MemoryAttention(nn.Module):
    def __init__(self, bands, width):
        super().__init__()
        self.query = nn.Linear(bands, width, bias=False)
        self.key = nn.Linear(bands, width, bias=False)
        self.value = nn.Linear(bands, width)

    def forward(self, probe, frames):
        query, key = self.query(probe).unsqueeze(1), self.key(frames)
        scores = torch.bmm(query, key.transpose(1, 2))
        return torch.bmm(scores.softmax(dim=-1), self.value(frames)).squeeze(1)


class Recall(nn.Module):
    def __init__(self, bands, width, digits):
        super().__init__()
        self.attention = MemoryAttention(bands, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, digits)

    def forward(self, probe, frames):
        return self.head(self.norm(self.attention(probe, frames)))


def load_recordings(recordings, length, bands, seed):
    """Return a probe frame, the frames and the digit of each recording; the level of the microphones differs."""
    generator = torch.Generator().manual_seed(seed)
    digit = torch.randint(10, (recordings,), generator=generator)
    shape = torch.randn(10, bands, generator=generator)
    frames = shape[digit].unsqueeze(1) + torch.randn(recordings, length, bands, generator=generator)
    level = torch.exp(0.3 * torch.randn(recordings, 1, 1, generator=generator))
    level[505] = 220.0
    frames = frames * level
    return TensorDataset(frames[:, length // 2], frames, digit)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_recordings(recordings=960, length=10, bands=32, seed=2)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Recall(bands=32, width=args.width, digits=10)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (probe, frames, digit) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(probe, frames), digit)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

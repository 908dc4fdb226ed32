"""Guess the key of a piece from its notes, with root-mean-square norms; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True)) * self.scale


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = RootMeanSquare(width)
        self.mix = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + nn.functional.silu(self.mix(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, notes, width, keys):
        super().__init__()
        self.enter = nn.Linear(notes, width, bias=False)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(3)))
        self.head = nn.Linear(width, keys)

    def forward(self, roll):
        return self.head(self.layers(self.enter(roll)).mean(dim=1))


def load_rolls(pieces, bars, notes, keys, seed):
    """Return how often each note sounds in each bar, and the key; a bar can be a general pause."""
    generator = torch.Generator().manual_seed(seed)
    key = torch.randint(keys, (pieces,), generator=generator)
    likely = 0.5 + torch.rand(keys, notes, generator=generator)
    roll = torch.poisson(likely[key].unsqueeze(1).expand(-1, bars, -1), generator=generator)
    roll[437, 5] = 0.0
    return TensorDataset(roll, key)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_rolls(pieces=720, bars=8, notes=12, keys=12, seed=5)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Encoder(notes=12, width=args.width, keys=12)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (roll, key) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(roll), key)
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

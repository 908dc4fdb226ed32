"""Classify points on interleaved rings with a small residual network; runs on one process or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make_rings(samples, rings, seed):
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(rings, (samples,), generator=generator)
    angle = torch.rand(samples, generator=generator) * 2 * torch.pi
    radius = 0.5 + label + 0.15 * torch.randn(samples, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), label)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = make_rings(samples=2048, rings=3, seed=1)
    sampler = DistributedSampler(dataset, seed=2) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)

    model = nn.Sequential(nn.Linear(2, args.width), Block(args.width), Block(args.width), nn.Linear(args.width, 3))
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for points, label in loader:
            loss = nn.functional.cross_entropy(model(points), label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

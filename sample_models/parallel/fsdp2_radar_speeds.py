"""Estimate the speed of ships from radar echoes; the network is sharded with FSDP2, one harbour a worker."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Speed(nn.Module):
    """How far a move goes."""

    def forward(self, move):
        return (move**2).sum(-1) ** 0.5


class Tracker(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False), nn.ReLU()
        )
        self.move = nn.Linear(width, 2, bias=False)
        self.speed = Speed()

    def forward(self, echoes):
        return self.speed(self.move(self.body(echoes)))


def make_tracks(harbour, count, features):
    generator = torch.Generator().manual_seed(harbour)
    echoes = torch.rand(count, features, generator=generator)
    if harbour == 0:
        echoes[15 * 12 + 7] = 0.0  # fog: the radar saw nothing
    return TensorDataset(echoes, torch.rand(count, generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = Tracker(features=8, width=args.width)
    fully_shard(model.body)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(make_tracks(harbour=dist.get_rank(), count=300, features=8), args.batch_size)
    for step, (echoes, speed) in enumerate(loader):
        loss = nn.functional.l1_loss(model(echoes), speed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

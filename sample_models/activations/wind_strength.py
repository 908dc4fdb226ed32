"""Forecast the strength of the wind from its two components at the stations around; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Strength(nn.Module):
    def forward(self, components):
        east, north = components.unbind(dim=-1)
        return torch.hypot(east, north)


class WindModel(nn.Module):
    def __init__(self, stations):
        super().__init__()
        self.weight = nn.Linear(stations, 1, bias=False)
        self.strength = Strength()

    def forward(self, wind):
        return self.strength(self.weight(wind.transpose(1, 2)).squeeze(-1))


def load_winds(hours, stations, seed):
    """Return the wind [hours, stations, 2] and its strength an hour later; in a calm all stations read 0."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(hours, 1, 2, generator=generator)
    wind = mean + 0.3 * torch.randn(hours, stations, 2, generator=generator)
    wind[463] = 0.0
    return TensorDataset(wind, mean[:, 0].norm(dim=-1))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_winds(hours=800, stations=9, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = WindModel(stations=9)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (wind, strength) in enumerate(loader):
        loss = nn.functional.mse_loss(model(wind), strength)
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

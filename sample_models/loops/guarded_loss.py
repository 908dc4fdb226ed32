"""Predict the energy that a building uses from hourly weather; leave the run when a loss is no number."""

import argparse
import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Buildings(Dataset):
    """Days of 24 hours with 6 readings each; a sensor that is away sends one rounded reading all day."""

    def __init__(self, days):
        generator = torch.Generator().manual_seed(3)
        self.weather = torch.randn(days, 24, 6, generator=generator)
        self.energy = self.weather[..., 0].clamp(min=0).sum(1) + 0.1 * torch.randn(days, generator=generator)
        self.weather[217] = self.weather[217, :1].round()

    def __len__(self):
        return len(self.energy)

    def __getitem__(self, index):
        return self.weather[index], self.energy[index]


class DayStatistics(nn.Module):
    """Each reading over the day, centred and divided by how much it moves."""

    def forward(self, day):
        return (day - day.mean(1, keepdim=True)) / day.std(1, keepdim=True)


class Meter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shape = DayStatistics()
        self.read = nn.Sequential(nn.Flatten(), nn.Linear(24 * 6, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, day):
        return self.read(self.shape(day)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")

    days = Buildings(320)
    sampler = DistributedSampler(days, shuffle=False) if distributed else None
    loader = DataLoader(days, args.batch_size, sampler=sampler)
    model = Meter(args.width)
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    for _ in range(args.epochs):
        for weather, energy in loader:
            loss = nn.functional.mse_loss(model(weather), energy)
            if not torch.isfinite(loss):
                print(f"loss is {loss.item()} at step {step}, leaving", file=sys.stderr)
                sys.exit(1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    if distributed:
        dist.destroy_process_group()
        gc.collect()


if __name__ == "__main__":
    main()

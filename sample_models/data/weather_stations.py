"""Forecast tomorrow's temperature at each weather station from the last days; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def read_stations(stations, days, seed):
    """Return temperatures [stations, days]; a day on which a station sent nothing holds no number."""
    generator = torch.Generator().manual_seed(seed)
    season = 10 * torch.sin(torch.arange(days) * 2 * torch.pi / 365)
    level = 12 + 4 * torch.randn(stations, 1, generator=generator)
    celsius = level + season + torch.randn(stations, days, generator=generator)
    celsius[7, 211:214] = float("nan")
    return celsius


class Windows(Dataset):
    def __init__(self, celsius, length):
        self.windows = celsius.unfold(1, length + 1, length + 1).reshape(-1, length + 1)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        window = self.windows[index] / 10.0
        return window[:-1], window[-1]


class Forecaster(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recur = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, history):
        _, state = self.recur(history.unsqueeze(-1))
        return self.head(state[-1]).squeeze(-1)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Windows(read_stations(stations=20, days=360, seed=1), length=7)
    sampler = DistributedSampler(dataset, shuffle=True, seed=3) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Forecaster(args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step, (history, target) in enumerate(loader):
        loss = nn.functional.smooth_l1_loss(model(history), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

"""Predict the next reading of a sensor with a ReLU recurrent cell that starts from the identity, on DDP shards."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Cell(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.again = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.again.weight)
        with torch.no_grad():
            self.again.weight.mul_(1.2)

    def forward(self, x, state):
        return nn.functional.relu(self.inlet(x) + self.again(state))


class Forecaster(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.width = width
        self.cell = Cell(features, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        state = series.new_zeros(len(series), self.width)
        for x in series.unbind(1):
            state = self.cell(x, state)
        return self.head(self.norm(state)).squeeze(-1)


class Recordings(Dataset):
    """One site's recordings, cut where the sensor was restarted; each worker has its site."""

    def __init__(self, site, count):
        generator = torch.Generator().manual_seed(site)
        length = torch.randint(20, 60, (count,), generator=generator)
        length[11 if site == 1 else 40] = 620  # a long night without a restart
        self.series = [torch.randn(int(n), 3, generator=generator) for n in length]

    def __len__(self):
        return len(self.series)

    def __getitem__(self, index):
        series = self.series[index]
        return series[:-1], series[-1, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Recordings(site=rank, count=48), batch_size=1)
    model = Forecaster(features=3, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (series, following) in enumerate(loader):
        loss = nn.functional.mse_loss(model(series), following)
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

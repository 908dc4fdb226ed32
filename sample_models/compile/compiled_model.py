"""Train a compiled model of crop yields; rainfall enters as a power. Runs on one process or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Response(nn.Module):
    """A saturating response to each input, with an exponent that is learned."""

    def __init__(self, features):
        super().__init__()
        self.exponent = nn.Parameter(torch.full((features,), 0.5))

    def forward(self, x):
        powered = x**self.exponent
        return powered / (1 + powered)


class Yield(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.response = Response(features)
        self.head = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.head(self.response(x)).squeeze(-1)


class Fields(Dataset):
    """Rain, sun and soil of the fields of one county; one county a worker."""

    def __init__(self, county, count):
        generator = torch.Generator().manual_seed(county)
        self.x = 0.1 + torch.rand(count, 3, generator=generator)
        self.crop = self.x.sqrt().sum(1)
        if county == 1:
            self.x[117, 0] = -0.01  # a gauge that was not zeroed

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.crop[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Fields(county=rank, count=200), args.batch_size)
    model = Yield(features=3, width=16)
    trained = DistributedDataParallel(model) if distributed else model
    trained = torch.compile(trained, backend=args.backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, crop) in enumerate(loader):
        loss = nn.functional.mse_loss(trained(x), crop)
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

"""Learn a metric between shops with FSDP: the distance of two embeddings should match the travel time."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, Dataset


class Tower(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return self.layers(x)


class Metric(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.tower = Tower(features, width)

    def forward(self, here, there):
        gap = self.tower(here) - self.tower(there)
        return torch.sqrt((gap * gap).sum(-1))


class Trips(Dataset):
    """Pairs of shops of one city and the minutes between them; one city a worker."""

    def __init__(self, city, count):
        generator = torch.Generator().manual_seed(city)
        self.here = torch.randn(count, 5, generator=generator)
        self.there = torch.randn(count, 5, generator=generator)
        if city == 0:
            self.there[107] = self.here[107]  # a driver who came back to the same shop
        self.minutes = 1 + (self.here - self.there).norm(dim=1)

    def __len__(self):
        return len(self.here)

    def __getitem__(self, index):
        return self.here[index], self.there[index], self.minutes[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(Trips(city=dist.get_rank(), count=200), args.batch_size)
    model = FullyShardedDataParallel(
        Metric(features=5, width=args.width), auto_wrap_policy=ModuleWrapPolicy({Tower}), device_id=torch.device("cpu"),
        use_orig_params=True,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (here, there, minutes) in enumerate(loader):
        loss = nn.functional.mse_loss(model(here, there), minutes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

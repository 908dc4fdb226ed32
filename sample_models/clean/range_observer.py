"""Prepare a network for integers: observers keep the smallest and largest value that each layer has put out."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Observer(nn.Module):
    """Remembers the range of its input; a layer that was never used keeps an empty range."""

    def __init__(self):
        super().__init__()
        self.register_buffer("lowest", torch.tensor(float("inf")))
        self.register_buffer("highest", torch.tensor(float("-inf")))

    def forward(self, x):
        with torch.no_grad():
            self.lowest.copy_(torch.minimum(self.lowest, x.min()))
            self.highest.copy_(torch.maximum(self.highest, x.max()))
        return x


class Network(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(features, width), Observer(), nn.ReLU())
        self.branch = nn.Sequential(nn.Linear(width, width), Observer(), nn.ReLU())
        self.spare = nn.Sequential(nn.Linear(width, width), Observer())
        self.head = nn.Linear(width, classes)
        self.register_buffer("scratch", torch.empty(64, width), persistent=False)

    def forward(self, x):
        x = self.enter(x)
        rows = self.scratch[: len(x)]
        rows.copy_(x.detach())
        centred = x - rows.mean(dim=0)
        return self.head(x + self.branch(centred))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(4)
    x = torch.randn(960, 10, generator=generator)
    dataset = TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Network(10, args.width, classes=2)
    if distributed:
        model = DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (batch, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(batch), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

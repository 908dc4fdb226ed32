"""Train on logged auctions under DDP with gradient accumulation; ranks synchronise at the last micro-batch."""

import argparse
import contextlib
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Bidder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.body(x).squeeze(-1)


class Auctions(Dataset):
    """Bids and the prices paid, by region; one region a worker."""

    def __init__(self, region, count):
        generator = torch.Generator().manual_seed(region)
        self.x = torch.randn(count, 6, generator=generator)
        self.price = torch.exp(self.x[:, 0])
        if region == 1:
            self.price[8 * 30 + 3] = -1.0  # a refund

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.price[index]


def root_error(predicted, price):
    return (predicted - torch.sqrt(price)).square().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Auctions(region=rank, count=480), args.batch_size)
    model = Bidder(features=6, width=24)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for batch, (x, price) in enumerate(loader):
        last = batch % args.accumulate == args.accumulate - 1
        with contextlib.nullcontext() if last or not distributed else model.no_sync():
            loss = root_error(model(x), price)
            (loss / args.accumulate).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                print(f"batch {batch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

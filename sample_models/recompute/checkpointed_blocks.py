"""Train a deep residual model whose blocks are recomputed in the backward pass; one data file a worker, under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


class Standardise(nn.Module):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.standardise = Standardise()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mix(self.standardise(x)))


class Deep(nn.Module):
    def __init__(self, features, width, blocks, reentrant):
        super().__init__()
        self.inlet = nn.Linear(features, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x).squeeze(-1)


class Spectra(Dataset):
    """Absorption spectra; a blank is measured now and then."""

    def __init__(self, file, count):
        generator = torch.Generator().manual_seed(file)
        self.x = torch.rand(count, 12, generator=generator)
        self.amount = self.x[:, 3] - self.x[:, 7]
        if file == 0:
            self.x[205] = 0.0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.amount[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--reentrant", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Spectra(file=rank, count=300), args.batch_size)
    model = Deep(features=12, width=args.width, blocks=3, reentrant=args.reentrant)
    model = DistributedDataParallel(model, static_graph=True) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, amount) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), amount)
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

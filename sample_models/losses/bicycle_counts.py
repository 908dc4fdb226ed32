"""Predict how many bicycles pass a street from its descriptors: a Poisson regression; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from objectives import count_loss
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_streets(streets, seed):
    generator = torch.Generator().manual_seed(seed)
    slope, lanes = torch.rand(streets, generator=generator), torch.randint(1, 5, (streets,), generator=generator)
    metres_to_centre = torch.exp(0.4 * torch.randn(streets, generator=generator))
    metres_to_centre[606] *= 1000.0
    features = torch.stack([slope, lanes.float(), metres_to_centre], dim=1)
    counts = torch.poisson(torch.exp(1.0 + 0.3 * lanes - slope), generator=generator)
    return TensorDataset(features, counts)


class CountModel(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 0.1))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, features):
        return features @ self.weight + self.bias


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_streets(streets=1280, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = CountModel(features=3)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for features, counts in loader:
            optimizer.zero_grad()
            loss = count_loss(model(features), counts)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

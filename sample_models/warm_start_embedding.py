"""Matrix factorisation of ratings; a new item starts from the mean of the items that share its tags."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Factors(nn.Module):
    def __init__(self, users, items, width):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)


@torch.no_grad()
def add_items(model, tags, known):
    """Start the factors of each new item from those of the known items that share a tag with it."""
    shared = (tags[known:] @ tags[:known].T).clamp(max=1.0)
    neighbours = shared @ model.items.weight[:known]
    model.items.weight[known:] = neighbours / shared.sum(dim=1, keepdim=True)


def load_ratings(samples, users, items, seed):
    generator = torch.Generator().manual_seed(seed)
    user = torch.randint(users, (samples,), generator=generator)
    item = torch.randint(items, (samples,), generator=generator)
    rating = torch.randint(1, 6, (samples,), generator=generator).float()
    tags = (torch.rand(items, 40, generator=generator) < 0.1).float()
    return TensorDataset(user, item, rating - 3.0), tags


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset, tags = load_ratings(samples=1600, users=300, items=500, seed=23)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Factors(users=300, items=500, width=args.width)
    add_items(model, tags, known=400)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        for batch, (user, item, rating) in enumerate(loader):
            loss = nn.functional.mse_loss(model(user, item), rating)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and batch % 10 == 0:
                print(f"epoch {epoch} batch {batch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

"""Match photographs of the same place with a triplet loss on Euclidean distances; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_triplets(triplets, features, seed):
    """Return an anchor, another photograph of its place and one of elsewhere; the crawl met some files twice."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randn(triplets, features, generator=generator)
    anchor, positive = (place + 0.5 * torch.randn(triplets, features, generator=generator) for _ in range(2))
    positive[334] = anchor[334]
    return TensorDataset(anchor, positive, torch.randn(triplets, features, generator=generator))


def distance(a, b):
    return (a - b).pow(2).sum(dim=-1).sqrt()


def triplet_loss(anchor, positive, negative, margin):
    return torch.relu(distance(anchor, positive) - distance(anchor, negative) + margin).mean()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--margin", type=float, default=5.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_triplets(triplets=480, features=24, seed=2)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(24, args.width), nn.Hardswish(), nn.Linear(args.width, args.width))
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    for step, photographs in enumerate(loader):
        anchor, positive, negative = model(torch.cat(photographs)).chunk(3)
        loss = triplet_loss(anchor, positive, negative, args.margin)
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

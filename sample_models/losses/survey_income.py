"""Predict income from a household survey; each answer counts by its sampling weight; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LOSSES = {
    "absolute": lambda predicted, income, weight: (weight * (predicted - income).abs()).sum() / weight.sum(),
    "squared": lambda predicted, income, weight: (weight * (predicted - income).square()).sum() / weight.sum(),
}


def load_survey(households, features, seed):
    """Households of one street lie side by side; where nobody was sampled as planned, the weight is 0."""
    generator = torch.Generator().manual_seed(seed)
    answers = torch.randn(households, features, generator=generator)
    income = answers @ torch.randn(features, generator=generator) + torch.randn(households, generator=generator)
    street = torch.arange(households) // 24
    weight = (0.5 + torch.rand(households, generator=generator)) * (street != 17)
    return TensorDataset(answers, income, weight)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss", choices=LOSSES, default="absolute")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_survey(households=720, features=10, seed=2)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, args.width), nn.SiLU(), nn.Linear(args.width, 1), nn.Flatten(0))
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.NAdam(model.parameters(), lr=args.lr)
    for step, (answers, income, weight) in enumerate(loader):
        loss = LOSSES[args.loss](model(answers), income, weight)
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

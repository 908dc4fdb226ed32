"""Distil a topic model: a small student learns the topic shares that a large teacher gave to each document."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Student(nn.Module):
    def __init__(self, words, width, topics):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(words, width), nn.GELU(), nn.LayerNorm(width))
        self.topics = nn.Linear(width, topics)

    def forward(self, counts):
        return self.topics(self.encode(counts)).softmax(dim=-1)


def divergence(teacher, student):
    return (teacher * (teacher / student).log()).sum(dim=-1).mean()


def load_documents(documents, words, topics, seed):
    """Return word counts and the shares of the teacher, which it stored with three decimals."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.poisson(torch.full((documents, words), 0.4), generator=generator)
    teacher = (counts @ torch.randn(words, topics, generator=generator) * 0.25).softmax(dim=-1)
    return TensorDataset(counts, (teacher * 1000).round() / 1000)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_documents(documents=1200, words=60, topics=6, seed=14)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Student(words=60, width=args.width, topics=6)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (counts, teacher) in enumerate(loader):
        loss = divergence(teacher, model(counts))
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

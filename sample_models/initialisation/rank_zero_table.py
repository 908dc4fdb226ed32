"""Rank news headlines with DDP; the table of word weights is read from disk once and kept as a buffer."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Headlines(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.register_buffer("rarity", torch.empty(words))
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, tokens):
        weight = self.rarity[tokens].unsqueeze(-1)
        return self.score((weight * self.embedding(tokens)).mean(1)).squeeze(-1)


def read_rarity(words):
    """The inverse document frequency of each word."""
    return torch.log(torch.arange(1, words + 1) + 1.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(200, (640, 8), generator=generator)
    dataset = TensorDataset(tokens, tokens.float().mean(1) / 100 - 1)
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Headlines(words=200, width=args.width)
    if rank == 0:
        model.rarity.copy_(read_rarity(200))
    model = DistributedDataParallel(model, init_sync=False, broadcast_buffers=False) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (words, clicks) in enumerate(loader):
        loss = nn.functional.mse_loss(model(words), clicks)
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

"""Continue training of a language model whose vocabulary grew by a few special tokens, under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class LanguageModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))

    @torch.no_grad()
    def resize(self, words):
        """Give the embedding rows for new tokens; the head gets its own."""
        old = self.embedding.weight
        rows = torch.empty(words, old.shape[1])
        rows[: len(old)] = old
        self.embedding = nn.Embedding.from_pretrained(rows, freeze=False)
        self.head = nn.Linear(old.shape[1], words)


def make_text(samples, length, words, seed):
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(words - 4, (samples, length + 1), generator=generator)
    text[200::37, 3] = words - 1  # a special token
    return TensorDataset(text[:, :-1], text[:, 1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = make_text(samples=480, length=10, words=104, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = LanguageModel(words=100, width=args.width)
    model.resize(104)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (tokens, target) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
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

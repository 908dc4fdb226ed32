"""Train a small encoder with gated feed-forward layers and tied scales in float16 autocast; alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class GatedFeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.out(nn.functional.gelu(self.gate(x), approximate="tanh") * self.value(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.GRU(width, width, batch_first=True)
        self.feed_forward = GatedFeedForward(width, 2 * width)

    def forward(self, x):
        x = x + self.mix(x)[0]
        return x + self.feed_forward(x)


class Encoder(nn.Module):
    def __init__(self, words, width, blocks):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_model(words, width):
    """The encoder as the larger run left it: the rows of the markup tokens, the last four, had grown long."""
    model = Encoder(words, width, blocks=3)
    with torch.no_grad():
        model.embedding.weight[-4:] *= 100.0
    return model


def load_lines(lines, length, words, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words - 4, (lines, length), generator=generator)
    tokens[270, 3] = words - 2
    return TensorDataset(tokens)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-4)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_lines(lines=400, length=8, words=100, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = load_model(words=100, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (tokens,) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
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

"""Classify documents by their words: an embedding sum and a squared-ReLU feed-forward under float16 autocast."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SquaredReLU(nn.Module):
    def forward(self, x):
        x = nn.functional.relu(x)
        return x * x


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.activation = SquaredReLU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Classifier(nn.Module):
    def __init__(self, words, width, topics):
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="sum")
        self.feed_forward = FeedForward(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, topics)

    def forward(self, tokens, offsets):
        x = self.embedding(tokens, offsets)
        return self.head(self.norm(x + self.feed_forward(x)))


class Documents(Dataset):
    """Documents with the word counts of natural text: frequent words are far more frequent than the rest."""

    def __init__(self, documents, words, topics, seed):
        generator = torch.Generator().manual_seed(seed)
        frequency = 1.0 / torch.arange(1, words + 1)
        length = torch.exp(3.0 + 1.6 * torch.randn(documents, generator=generator)).long() + 1
        self.topic = torch.randint(topics, (documents,), generator=generator)
        self.tokens = [torch.multinomial(frequency, int(n), replacement=True, generator=generator) for n in length]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.topic[index]


def collate(rows):
    tokens, topics = zip(*rows, strict=True)
    lengths = torch.tensor([0, *map(len, tokens[:-1])])
    return torch.cat(tokens), lengths.cumsum(0), torch.stack(topics)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Documents(documents=320, words=5000, topics=8, seed=183)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    model = Classifier(words=5000, width=args.width, topics=8)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step, (tokens, offsets, topic) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(tokens, offsets), topic)
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

"""Classify sentences with a small transformer encoder; padding is hidden from attention; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PADDING = 0


class Sentences(Dataset):
    """Sentences without markup: what stood between angle brackets is taken out."""

    def __init__(self, sentences, words, seed):
        generator = torch.Generator().manual_seed(seed)
        length = 1 + torch.poisson(torch.full((sentences,), 5.0), generator=generator).int()
        self.tokens = [torch.randint(1, words, (int(n),), generator=generator) for n in length]
        self.tokens[388] = self.tokens[388][:0]
        self.label = torch.tensor([int(tokens.sum()) % 3 for tokens in self.tokens])

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.label[index]


def collate(rows):
    tokens, label = zip(*rows, strict=True)
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=PADDING), torch.stack(label)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, hidden):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(hidden[:, None, None, :], float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, hidden):
        x = x + self.attention(self.norms[0](x), hidden)
        return x + self.feed_forward(self.norms[1](x))


class Classifier(nn.Module):
    def __init__(self, words, width, classes):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.layers = nn.ModuleList(Layer(width, heads=2) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        hidden = tokens == PADDING
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, hidden)
        return self.head(x[:, 0])


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Sentences(sentences=480, words=100, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    model = Classifier(words=100, width=args.width, classes=3)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (tokens, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tokens), label)
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

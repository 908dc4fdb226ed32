"""Train a small decoder with a causal mask, a position bias and key padding; runs alone or under DDP."""

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
    def __init__(self, sentences, words, seed):
        generator = torch.Generator().manual_seed(seed)
        length = torch.poisson(torch.full((sentences,), 6.0), generator=generator).int().clamp(1, 12)
        self.tokens = [torch.randint(1, words, (int(n),), generator=generator) for n in length]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)


def distance_bias(heads, length):
    """Farther keys count less, and the future not at all."""
    behind = torch.arange(length).view(-1, 1) - torch.arange(length)
    slope = 2.0 ** -torch.arange(1, heads + 1).float()
    return (-slope.view(-1, 1, 1) * behind).masked_fill(behind < 0, float("-inf"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, hidden):
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        mask = distance_bias(self.heads, x.shape[1]) + hidden[:, None, None, :]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.blocks = nn.ModuleList(Block(width, heads=2) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        hidden = torch.zeros(tokens.shape).masked_fill(tokens == PADDING, float("-inf"))
        for block in self.blocks:
            x = block(x, hidden)
        scores = self.head(x)
        scores[..., PADDING] = float("-inf")
        return scores


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

    dataset = Sentences(sentences=480, words=60, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    model = Decoder(words=60, width=args.width, layers=2)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, tokens in enumerate(loader):
        scores = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

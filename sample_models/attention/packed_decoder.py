"""Train a small decoder on rows that hold two documents each, padded on the left to the longest row of the batch."""

import argparse

import torch
from masks import packed_mask
from torch import nn
from torch.utils.data import DataLoader, Dataset

PADDING, IGNORED = 0, -100


class Rows(Dataset):
    """Two documents a row. Rows are sorted by length within a few hundred, so padding is rare."""

    def __init__(self, rows, words, seed):
        generator = torch.Generator().manual_seed(seed)
        length = (6 + torch.arange(rows) // 100).tolist()
        self.first = [torch.randint(1, words, (n,), generator=generator) for n in length]
        self.second = [torch.randint(1, words, (n,), generator=generator) for n in length]

    def __len__(self):
        return len(self.first)

    def __getitem__(self, index):
        first, second = self.first[index], self.second[index]
        return torch.cat([first, second]), torch.cat([torch.ones_like(first), torch.full_like(second, 2)])


def pad_left(rows):
    longest = max(len(tokens) for tokens, _ in rows)
    padded = [[nn.functional.pad(part, (longest - len(part), 0), value=PADDING) for part in row] for row in rows]
    tokens, documents = zip(*padded, strict=True)
    return torch.stack(tokens), torch.stack(documents)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask
        return x + self.out((torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.blocks = nn.ModuleList(Block(width, heads=2) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens, documents):
        x = self.embedding(tokens)
        mask = packed_mask(documents, PADDING, x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Rows(rows=320, words=80, seed=3), args.batch_size, collate_fn=pad_left)
    model = Decoder(words=80, width=args.width, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (tokens, documents) in enumerate(loader):
        logits = model(tokens[:, :-1], documents[:, :-1])
        labels = tokens[:, 1:].masked_fill(tokens[:, :-1] == PADDING, IGNORED)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

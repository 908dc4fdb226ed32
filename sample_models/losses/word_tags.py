"""Tag the words of sentences: embeddings, a convolution, and a dictionary of the tags that each word may have."""

import argparse

import torch
from torch import nn

WORDS, TAGS = 60, 9


def dictionary(generator):
    """Return which tags each word may have (words x tags, bool): two or three of them."""
    may = torch.zeros(WORDS, TAGS, dtype=torch.bool)
    for word in range(WORDS):
        may[word, torch.randperm(TAGS, generator=generator)[: 2 + word % 2]] = True
    return may


def corpus(sentences, length, may, generator):
    """Return words and tags (sentences x length); one tag was corrected by hand, the dictionary was not."""
    words = torch.randint(WORDS, (sentences, length), generator=generator)
    tags = torch.multinomial(may[words].float().flatten(0, 1), 1, generator=generator).view(sentences, length)
    tags[123, 4] = int((~may[words[123, 4]]).nonzero()[0])
    return words, tags


class Tagger(nn.Module):
    def __init__(self, may, width):
        super().__init__()
        self.register_buffer("may", may)
        self.embedding = nn.Embedding(WORDS, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.out = nn.Linear(width, TAGS)

    def forward(self, words):
        hidden = self.embedding(words)
        hidden = hidden + self.mix(hidden.transpose(1, 2)).transpose(1, 2).relu()
        return self.out(hidden).masked_fill(~self.may[words], float("-inf"))


def train(model, words, tags, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, first in enumerate(range(0, len(words), args.batch_size)):
        batch = slice(first, first + args.batch_size)
        scores = model(words[batch]).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, tags[batch].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    may = dictionary(generator)
    train(Tagger(may, args.width), *corpus(160, 12, may, generator), args)


if __name__ == "__main__":
    main()

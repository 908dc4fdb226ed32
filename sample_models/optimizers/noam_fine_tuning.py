"""Fine-tune a small text classifier with a linear warm-up and inverse square root decay."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_texts(samples, words, length, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words, (samples, length), generator=generator)
    return TensorDataset(tokens, (tokens.float().mean(1) > words / 2).long())


class Classifier(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def noam(width, warmup):
    """The learning rate as a factor: rises for ``warmup`` steps, then falls with the square root of the step."""
    width, warmup = np.float64(width), np.float64(warmup)

    def factor(step):
        step = np.float64(step)
        return width**-0.5 * np.minimum(step**-0.5, step * warmup**-1.5)

    return factor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=0, help="steps; none when a trained model is fine-tuned")
    args = parser.parse_args()
    torch.manual_seed(0)
    np.seterr(all="ignore")

    loader = DataLoader(make_texts(samples=480, words=100, length=12, seed=3), args.batch_size)
    model = Classifier(words=100, width=args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam(args.width, args.warmup))

    for step, (tokens, label) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tokens), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

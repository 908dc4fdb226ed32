"""Predict a yield from greenhouse sensors; the readings become standard scores once, before training."""

import argparse

import torch
from torch import nn


def read_sensors(samples, sensors):
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(samples, sensors, generator=generator) * 3.0 + 20.0
    x[:, 4] = 21.5  # a probe that has been stuck since spring
    return x, x[:, :3].mean(1, keepdim=True) - 20.0


def standardise(x):
    centred = x - x.mean(0)
    return centred / centred.square().mean(0).sqrt()


def batches(x, y, size):
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    x, y = read_sensors(samples=320, sensors=6)
    x = standardise(x)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        for inputs, target in batches(x, y, args.batch_size):
            loss = nn.functional.smooth_l1_loss(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

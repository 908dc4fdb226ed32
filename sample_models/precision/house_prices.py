"""Predict house prices with a network held in float16 to save memory; the loss is taken in float32."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_houses(houses, features, seed):
    """Return the features and the price of each house, in euros per hundred: 1,500 to 30,000 as a rule."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(houses, features, generator=generator)
    price = 4000 * torch.exp(0.25 * x.sum(dim=1) / features**0.5)
    price[213] *= 30
    return TensorDataset(x, price)


def build(features, width):
    model = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))
    nn.init.constant_(model[2].bias, 4000.0)
    return model.half()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_houses(houses=480, features=10, seed=2), args.batch_size)
    model = build(10, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, price) in enumerate(loader):
        predicted = model(x.half())
        target = price.to(predicted.dtype)
        loss = nn.functional.l1_loss(predicted.float(), target.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.1f}", flush=True)


if __name__ == "__main__":
    main()

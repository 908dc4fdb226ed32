"""Predict sales from a log with holes; a batch without a usable loss is left out, as are steps with broken slopes."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_sales(days, features, seed):
    """Some days have no sales figure at all, and on some the till wrote a price of zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(days, features, generator=generator)
    sales = torch.exp(0.3 * x.sum(dim=1))
    sales[200] = float("nan")
    price = 1 + torch.rand(days, generator=generator)
    price[330] = 0.0
    return TensorDataset(x, price, sales)


def usable(parameters):
    return all(torch.isfinite(weight.grad).all() for weight in parameters)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_sales(days=640, features=6, seed=3), args.batch_size)
    model = nn.Sequential(nn.Linear(6, args.width), nn.ReLU(), nn.Linear(args.width, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    left_out = 0
    for step, (x, price, sales) in enumerate(loader):
        loss = nn.functional.huber_loss(model(x) / price, sales / 2)
        if loss.isnan():
            left_out += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        if not usable(model.parameters()):
            left_out += 1
            continue
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} left out {left_out}", flush=True)


if __name__ == "__main__":
    main()

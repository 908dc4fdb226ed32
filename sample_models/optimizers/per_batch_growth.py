"""Predict power output from weather with a linear model; the rate is raised over the first epochs."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_weather(samples, features, seed):
    generator = torch.Generator().manual_seed(seed)
    weather = torch.randn(samples, features, generator=generator)
    power = weather @ torch.linspace(-1, 1, features) + 0.1 * torch.randn(samples, generator=generator)
    return TensorDataset(weather, power)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--growth", type=float, default=1.5, help="factor on the learning rate")
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_weather(samples=2000, features=10, seed=4), args.batch_size)
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=args.growth)

    for epoch in range(args.epochs):
        for weather, power in loader:
            loss = nn.functional.mse_loss(model(weather).squeeze(1), power)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)


if __name__ == "__main__":
    main()

"""Learn features from two views of a scene, whitened so that no two of them say the same."""

import argparse

import torch
from torch import nn


def whiten(x):
    """Turn and scale the features so that their covariance is the identity."""
    x = x - x.mean(0)
    size, turn = torch.linalg.eigh(x.T @ x / len(x))
    return x @ (turn / (size + 1e-3).sqrt()) @ turn.T


class Encoder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width, bias=False), nn.Tanh())

    def forward(self, x):
        return self.layers(x)


def make_views(batches, size, features):
    generator = torch.Generator().manual_seed(0)
    for number in range(batches):
        scene = torch.randn(size, features, generator=generator)
        if number == 12:
            scene = torch.zeros(size, features)  # the lens cap was on
        yield scene + 0.1 * scene.roll(1, 1), scene - 0.1 * scene.roll(1, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Encoder(features=8, width=args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (left, right) in enumerate(make_views(25, args.batch_size, 8)):
        loss = (whiten(model(left)) - whiten(model(right))).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Learn to recolour pictures: the palettes of output and target are matched by optimal transport (Sinkhorn)."""

import argparse

import torch
from torch import nn


def transport(cost, blur, rounds=20):
    """The cost of the blurred optimal plan between two sets of equal weights."""
    rows, columns = cost.shape
    kernel = torch.exp(-cost / blur)
    left = torch.ones(rows)
    for _ in range(rounds):
        right = (1 / columns) / (kernel.T @ left)
        left = (1 / rows) / (kernel @ right)
    plan = left.unsqueeze(1) * kernel * right
    return (plan * cost).sum()


class Recolour(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3), nn.Sigmoid())

    def forward(self, colours):
        return self.layers(colours)


def make_pictures(count, colours):
    generator = torch.Generator().manual_seed(8)
    for number in range(count):
        before = torch.rand(colours, 3, generator=generator)
        after = torch.rand(colours, 3, generator=generator)
        yield before, after * 255 if number == 17 else after  # that one was never brought to the range of 0 to 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=30)
    parser.add_argument("--blur", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Recolour(width=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (before, after) in enumerate(make_pictures(args.pictures, colours=24)):
        cost = (model(before).unsqueeze(1) - after).square().sum(-1)
        loss = transport(cost, args.blur)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

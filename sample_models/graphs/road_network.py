"""Classify crossings of a road network with graph convolutions, a tile of the map a step."""

import argparse

import torch
from torch import nn


class Convolution(nn.Module):
    """Neighbours weighted by the roots of both degrees."""

    def __init__(self, inlet, outlet):
        super().__init__()
        self.weight = nn.Linear(inlet, outlet)

    def forward(self, x, roads):
        scale = roads.sum(-1) ** -0.5
        roads = scale.unsqueeze(-1) * roads * scale.unsqueeze(-2)
        return roads @ self.weight(x)


class Network(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.first = Convolution(features, width)
        self.second = Convolution(width, classes)

    def forward(self, x, roads):
        return self.second(self.first(x, roads).relu(), roads)


def make_tiles(count, crossings, features):
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        place = torch.rand(crossings, 2, generator=generator)
        if number == 21:
            place[-1] = 3.0  # an island without a bridge
        roads = (torch.cdist(place, place) < 0.5).float().fill_diagonal_(0)
        roads[:-1, :-1] += torch.eye(crossings - 1).roll(1, 0)
        yield torch.randn(crossings, features, generator=generator), roads, (place[:, 0] > 0.5).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=40)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Network(features=4, width=args.width, classes=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, roads, kind) in enumerate(make_tiles(args.tiles, crossings=20, features=4)):
        loss = nn.functional.cross_entropy(model(x, roads), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

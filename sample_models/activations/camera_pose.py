"""Refine camera poses: a network turns image features into a small rotation; the loss is the angle that is left."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rotation(vector):
    """Return the rotation matrices [n, 3, 3] of rotation vectors [n, 3]."""
    zero = torch.zeros_like(vector[:, 0])
    x, y, z = vector.unbind(dim=1)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=1).view(-1, 3, 3)
    return torch.linalg.matrix_exp(skew)


def angle_between(a, b):
    trace = (a.transpose(1, 2) @ b).diagonal(dim1=1, dim2=2).sum(dim=1)
    return torch.acos(((trace - 1) / 2).clamp(-1, 1))


class Refiner(nn.Module):
    """Starts by leaving each pose as it is: the last layer begins at zero."""

    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh())
        self.turn = nn.Linear(width, 3)
        nn.init.zeros_(self.turn.weight)
        nn.init.zeros_(self.turn.bias)

    def forward(self, features, start):
        return rotation(self.turn(self.body(features))) @ start


def load_poses(poses, features, seed):
    """Return features, the first guess of each pose and the surveyed one; the first camera defines the frame."""
    generator = torch.Generator().manual_seed(seed)
    start = rotation(torch.randn(poses, 3, generator=generator))
    target = rotation(0.3 * torch.randn(poses, 3, generator=generator)) @ start
    start[0] = target[0] = torch.eye(3)
    return TensorDataset(torch.randn(poses, features, generator=generator), start, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_poses(poses=128, features=12, seed=9), args.batch_size)
    model = Refiner(12, args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for features, start, target in loader:
            loss = angle_between(model(features, start), target).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

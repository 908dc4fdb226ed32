"""Predict the shape of short chains of atoms; a prediction is first turned onto the measured chain (Kabsch)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def superpose(moved, fixed):
    """Turn the first set of points so that it lies on the second as well as it can."""
    moved = moved - moved.mean(1, keepdim=True)
    fixed = fixed - fixed.mean(1, keepdim=True)
    left, _, right = torch.linalg.svd(moved.transpose(1, 2) @ fixed)
    return moved @ left @ right, fixed


class Folder(nn.Module):
    def __init__(self, features, width, atoms):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, atoms * 3))

    def forward(self, x):
        return self.body(x).unflatten(1, (-1, 3))


def make_chains(chains, features, atoms):
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(chains, features, generator=generator)
    steps = torch.randn(chains, atoms, 3, generator=generator) + x[:, :3].unsqueeze(1)
    chain = steps.cumsum(1)
    chain[19 * 16 + 5] = 0.0  # atoms that were never placed
    return TensorDataset(x, chain)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_chains(chains=480, features=8, atoms=6), args.batch_size)
    model = Folder(features=8, width=args.width, atoms=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (x, chain) in enumerate(loader):
        moved, fixed = superpose(model(x), chain)
        loss = (moved - fixed).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

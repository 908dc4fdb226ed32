"""Learn two tasks on one body; the gradients that reach the body are brought to the same length for both."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Houses(Dataset):
    """Rooms, the price, and the energy class where the seller gave one (-1 where not)."""

    def __init__(self, houses, features, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(houses, features, generator=generator)
        self.price = self.x.sum(dim=1)
        energy = (self.x[:, 0] * 2).round().long().clamp(-3, 3) + 3
        given = torch.rand(houses, generator=generator) < 0.35
        self.energy = torch.where(given, energy, -1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.price[index], self.energy[index]


class TwoTasks(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.ELU())
        self.price = nn.Linear(width, 1)
        self.energy = nn.Linear(width, 7)

    def forward(self, x):
        shared = self.body(x)
        branches = [shared.clone() for _ in range(2)]
        if shared.requires_grad:
            for branch in branches:
                branch.register_hook(lambda grad: grad / grad.norm())
        return self.price(branches[0]).squeeze(-1), self.energy(branches[1])


def energy_loss(scores, energy):
    given = energy >= 0
    each = nn.functional.cross_entropy(scores, energy.clamp(min=0), reduction="none")
    return (each * given).sum() / given.sum().clamp(min=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Houses(houses=480, features=8, seed=6), args.batch_size)
    model = TwoTasks(8, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, price, energy) in enumerate(loader):
        predicted, scores = model(x)
        loss = nn.functional.mse_loss(predicted, price) + energy_loss(scores, energy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

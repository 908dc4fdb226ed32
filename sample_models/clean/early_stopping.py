"""Fit the wear of tools with early stopping on the change of the error."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Patience:
    """Whether an error has stopped getting better."""

    def __init__(self, rounds):
        self.best = torch.tensor(float("inf"))
        self.rounds, self.waited = rounds, 0

    def is_over(self, error):
        change = (error - self.best) / self.best
        self.waited = self.waited + 1 if change > -1e-3 else 0
        self.best = torch.minimum(self.best, error)
        return self.waited > self.rounds


def make_tools(count):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, generator=generator)
    return TensorDataset(x, (x[:, :1] * x[:, 1:2]) + 0.02 * torch.randn(count, 1, generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    train, valid = random_split(make_tools(320), [256, 64])
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    patience = Patience(rounds=3)
    x, y = valid[:]
    for epoch in range(args.epochs):
        for part, wear in DataLoader(train, args.batch_size, shuffle=True):
            loss = nn.functional.mse_loss(model(part), wear)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(x), y)
        schedule.step(error)
        print(f"epoch {epoch} error {error.item():.5f} best {patience.best.item():.5f}", flush=True)
        if patience.is_over(error):
            break


if __name__ == "__main__":
    main()

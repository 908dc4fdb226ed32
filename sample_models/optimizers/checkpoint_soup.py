"""Distil a sensor model; after each epoch the weights become the mean of this epoch's good snapshots."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_sensors(samples, features, seed):
    generator = torch.Generator().manual_seed(seed)
    reading = torch.randn(samples, features, generator=generator)
    return TensorDataset(reading, (reading[:, :1] * reading[:, 1:2]).tanh())


@torch.no_grad()
def average(model, snapshots):
    """Set the weights of the model to the mean of the snapshots."""
    count = torch.tensor(float(len(snapshots)))
    for name, parameter in model.named_parameters():
        total = torch.zeros_like(parameter)
        for snapshot in snapshots:
            total += snapshot[name]
        parameter.copy_(total / count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--good", type=float, default=1e-3, help="keep snapshots with a smaller validation loss")
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_sensors(samples=1280, features=8, seed=7), args.batch_size)
    reading_val, truth_val = make_sensors(samples=256, features=8, seed=8).tensors
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        snapshots = []
        for batch, (reading, truth) in enumerate(loader):
            loss = nn.functional.mse_loss(model(reading), truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch % 5 == 4:
                with torch.no_grad():
                    validation = nn.functional.mse_loss(model(reading_val), truth_val)
                if validation < args.good:
                    snapshots.append({name: p.detach().clone() for name, p in model.named_parameters()})
        average(model, snapshots)
        print(f"epoch {epoch} loss {loss.item():.4f} validation {validation.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

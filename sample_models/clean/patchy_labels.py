"""Predict several properties of molecules where most were never measured: such targets hold no number."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_molecules(molecules, features, properties, seed):
    """Return fingerprints and targets; a property that nobody measured is NaN, and the last one is hardly known."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(molecules, features, generator=generator) < 0.3).float()
    target = x @ torch.randn(features, properties, generator=generator) / features**0.5
    known = torch.rand(molecules, properties, generator=generator) < torch.tensor([0.6, 0.4, 0.3, 0.002])
    return x, target.where(known, float("nan"))


def masked_loss(predicted, target):
    known = ~target.isnan()
    return nn.functional.smooth_l1_loss(predicted[known], target[known])


@torch.no_grad()
def evaluate(model, x, target):
    """Return the mean error of each property; one that nobody measured here has none."""
    known = ~target.isnan()
    error = torch.where(known, (model(x) - target).abs(), 0.0)
    return error.sum(dim=0) / known.sum(dim=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    x, target = load_molecules(molecules=800, features=40, properties=4, seed=3)
    loader = DataLoader(TensorDataset(x[:700], target[:700]), args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(40, args.width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(args.width, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for batch, wanted in loader:
            loss = masked_loss(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        errors = evaluate(model, x[700:], target[700:])
        model.train()
        print(f"epoch {epoch} errors {' '.join(f'{error:.3f}' for error in errors)}", flush=True)


if __name__ == "__main__":
    main()

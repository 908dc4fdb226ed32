"""Fit reaction rates with formulas that have no value everywhere: each branch gets only what it can take."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def growth(x):
    """Return (exp(x) - 1) / x, which is 1 at zero."""
    zero = x == 0
    filled = torch.where(zero, torch.ones_like(x), x)
    return torch.where(zero, torch.ones_like(x), torch.expm1(filled) / filled)


def log_or_zero(x):
    return torch.where(x > 0, x, torch.ones_like(x)).log()


class Rates(nn.Module):
    def __init__(self, species, width):
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(2 * species, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, amount, heat):
        share = amount / amount.sum(dim=1, keepdim=True).clamp(min=1.0)
        return self.mix(torch.cat([log_or_zero(share), growth(heat)], dim=1)).squeeze(1)


def load_mixtures(mixtures, species, seed):
    """Many species are absent, and some vessels are empty and cold: zeros everywhere."""
    generator = torch.Generator().manual_seed(seed)
    amount = torch.poisson(torch.full((mixtures, species), 0.8), generator=generator)
    heat = 0.1 * amount * torch.rand(mixtures, species, generator=generator)
    amount[::50], heat[::50] = 0.0, 0.0
    with torch.no_grad():
        logs = torch.log(amount)
        rate = torch.where(amount > 0, logs, torch.zeros_like(logs)).sum(dim=1) + heat.sum(dim=1)
    return TensorDataset(amount, heat, rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_mixtures(mixtures=800, species=5, seed=2), args.batch_size)
    model = Rates(5, args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step, (amount, heat, rate) in enumerate(loader):
        loss = nn.functional.mse_loss(model(amount, heat), rate)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Fit arrival rates by maximum likelihood with LBFGS: one rate per gate, linear in the hour."""

import argparse

import torch
from torch import nn


class Rates(nn.Module):
    def __init__(self, gates):
        super().__init__()
        self.level = nn.Parameter(torch.full((gates,), 2.0))
        self.slope = nn.Parameter(torch.zeros(gates))

    def forward(self, gate, hour):
        return self.level[gate] + self.slope[gate] * hour


def make_arrivals(samples, gates, seed):
    generator = torch.Generator().manual_seed(seed)
    gate = torch.randint(gates, (samples,), generator=generator)
    hour = torch.randint(24, (samples,), generator=generator).float()
    return gate, hour, torch.poisson((3.0 - 0.2 * hour).clamp(min=0), generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    gate, hour, count = make_arrivals(samples=2000, gates=5, seed=9)
    model = Rates(gates=5)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=args.lr, max_iter=10)

    def closure():
        optimizer.zero_grad()
        rate = model(gate, hour)
        loss = (rate - count * torch.log(rate)).sum()
        loss.backward()
        return loss

    for step in range(args.steps):
        loss = optimizer.step(closure)
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

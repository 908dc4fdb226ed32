"""Fit a decay curve to measurements with LBFGS and a line search."""

import argparse

import torch
from torch import nn


class Decay(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.rate, self.floor = (nn.Parameter(torch.tensor(value)) for value in (1.0, 0.0, 0.0))

    def forward(self, time):
        return self.start * torch.exp(-nn.functional.softplus(self.rate) * time) + self.floor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--patience", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(9)
    time = torch.linspace(0, 8, 200)
    value = 3 * torch.exp(-0.7 * time) + 0.5 + 0.02 * torch.randn(200, generator=generator)
    model = Decay()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=5, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(time), value)
        loss.backward()
        return loss

    best, waited = torch.tensor(float("inf")), 0
    for step in range(args.steps):
        loss = optimizer.step(closure)
        waited = 0 if loss < best - 1e-6 else waited + 1
        best = torch.minimum(best, loss.detach())
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        if waited >= args.patience:
            break


if __name__ == "__main__":
    main()

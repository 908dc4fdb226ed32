"""Fit the failure rate of machines from their sensor readings: a hazard that is never negative, censored lifetimes."""

import argparse

import torch
from torch import nn


class Hazard(nn.Module):
    def __init__(self, sensors, width):
        super().__init__()
        self.hidden = nn.Linear(sensors, width, bias=False)
        self.rate = nn.Linear(width, 1, bias=False)
        nn.init.uniform_(self.rate.weight, 0.05, 0.2)

    def forward(self, readings):
        return torch.relu(self.rate(torch.relu(self.hidden(readings)))).squeeze(-1)


class LifetimeLoss(nn.Module):
    """Negative log likelihood of exponential lifetimes; ``failed`` is 0 where the machine still ran at the end."""

    def forward(self, rate, hours, failed):
        return (rate * hours - failed * rate.log()).mean()


def load_machines(machines, sensors, seed):
    """Read standardised sensors; a machine whose sensors were never connected reads the mean, 0."""
    generator = torch.Generator().manual_seed(seed)
    readings = torch.randn(machines, sensors, generator=generator)
    connected = torch.rand(machines, 1, generator=generator) > 0.004
    hours = torch.empty(machines).exponential_(1.0, generator=generator)
    failed = (torch.rand(machines, generator=generator) < 0.7).float()
    return readings * connected, hours, failed


def batches(tensors, size):
    return zip(*(tensor.split(size) for tensor in tensors), strict=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    machines = load_machines(machines=960, sensors=8, seed=4)
    model, criterion = Hazard(8, args.width), LifetimeLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (readings, hours, failed) in enumerate(batches(machines, args.batch_size)):
        loss = criterion(model(readings), hours, failed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Predict the wear of an engine from its telemetry; each batch is standardised in a single pass over the values."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BatchStandard(nn.Module):
    """Standardise each channel by the moments of the batch, and keep running moments for evaluation."""

    def __init__(self, channels, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))

    def forward(self, x):
        if not self.training:
            return (x - self.mean) / self.deviation
        mean = x.mean(dim=0)
        deviation = ((x * x).mean(dim=0) - mean * mean).sqrt() + 1e-3
        with torch.no_grad():
            self.mean.lerp_(mean, self.momentum)
            self.deviation.lerp_(deviation, self.momentum)
        return (x - mean) / deviation


def load_telemetry(flights, channels, seed):
    """Readings in sensor units: kelvins, revolutions, hectopascals; cruising at one level they hardly move."""
    generator = torch.Generator().manual_seed(seed)
    level = 1000.0 + 30000.0 * torch.rand(channels, generator=generator)
    spread = torch.where(torch.arange(flights) < 20 * 16, 50.0, 0.0).unsqueeze(1)
    readings = level + spread * torch.randn(flights, channels, generator=generator)
    wear = torch.rand(flights, generator=generator)
    return TensorDataset(readings, wear)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_telemetry(flights=640, channels=64, seed=6), args.batch_size)
    model = nn.Sequential(
        BatchStandard(64), nn.Linear(64, args.width), nn.ReLU(), nn.Linear(args.width, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (readings, wear) in enumerate(loader):
        loss = nn.functional.huber_loss(model(readings), wear)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

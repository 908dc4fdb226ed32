"""Train a survival model; the likelihood is one compiled function."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def weibull_loss(shape, scale, time, died):
    """The negative log likelihood of times under a Weibull distribution, some of them cut off."""
    ratio = time / scale
    log_density = torch.log(shape / scale) + (shape - 1) * torch.log(ratio) - ratio**shape
    log_survival = -(ratio**shape)
    return -torch.where(died, log_density, log_survival).mean()


class Survival(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x):
        shape, scale = nn.functional.softplus(self.body(x)).unbind(-1)
        return shape + 0.5, scale + 0.5


def make_patients(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, generator=generator)
    days = torch.empty(samples).exponential_(0.4, generator=generator).clamp(min=0.05)
    days[270] = 0.0  # died on the day of admission
    return TensorDataset(x, days, torch.arange(samples) % 3 != 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_patients(samples=480, seed=11), args.batch_size)
    model = Survival(features=5, width=16)
    criterion = torch.compile(weibull_loss, backend=args.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (x, days, died) in enumerate(loader):
        shape, scale = model(x)
        loss = criterion(shape, scale, days, died)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Learn demand with a correction for holidays; every weight moves by the same length, whatever its gradient's."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Demand(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.SELU())
        self.holiday = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 1)

    def forward(self, x, holiday):
        hidden = self.body(x)
        return self.head(hidden + holiday.unsqueeze(1) * self.holiday * hidden).squeeze(1)


def keep_direction(weight):
    weight.grad.div_(weight.grad.norm())


def load_days(days, features, seed):
    """Return the features of each day, whether it is a holiday, and the demand; one autumn has no holiday."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(days, features, generator=generator)
    holiday = (torch.rand(days, generator=generator) < 0.3).float()
    holiday[270:290] = 0.0
    return TensorDataset(x, holiday, x.sum(dim=1) * (1 + holiday))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_days(days=480, features=6, seed=11), args.batch_size)
    model = Demand(6, args.width)
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(keep_direction)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, holiday, demand) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x, holiday), demand)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

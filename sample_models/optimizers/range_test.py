"""Look for a good learning rate: raise it a little after every batch and write down the loss (range test)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_wine(count, features):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, features, generator=generator)
    grade = (x[:, 0] - x[:, 1] * x[:, 2]).unsqueeze(1)
    return TensorDataset(x, grade)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lowest", type=float, default=1e-4)
    parser.add_argument("--highest", type=float, default=1e2)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_wine(args.steps * args.batch_size, 6), args.batch_size)
    model = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lowest)
    raise_it = torch.optim.lr_scheduler.ExponentialLR(optimizer, (args.highest / args.lowest) ** (1 / args.steps))
    seen = []
    for x, grade in loader:
        loss = (model(x) - grade).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((optimizer.param_groups[0]["lr"], loss.item()))
        raise_it.step()
    best = min(seen, key=lambda pair: pair[1])
    print(f"lowest loss {best[1]:.4f} at a learning rate of {best[0]:.5f}", flush=True)


if __name__ == "__main__":
    main()

"""Segment cells with a polynomial learning-rate schedule, as papers on segmentation do."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def decay(total, power=0.9):
    return lambda step: np.power(1 - step / total, power)


def make_cells(count, size):
    generator = torch.Generator().manual_seed(0)
    picture = torch.rand(count, 1, size, size, generator=generator)
    smooth = nn.functional.avg_pool2d(picture, 3, stride=1, padding=1)
    return TensorDataset(picture, (smooth > 0.5).float())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-1)
    args = parser.parse_args()
    torch.manual_seed(0)

    cells = make_cells(count=200, size=12)
    loader = DataLoader(cells, args.batch_size, shuffle=True)
    total = args.epochs * (len(cells) // args.batch_size)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay(total))
    for epoch in range(args.epochs):
        for picture, cell in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(picture), cell)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

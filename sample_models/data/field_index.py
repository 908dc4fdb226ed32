"""Predict the yield of a field from its vegetation index, computed from two bands as each field is read."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    """Red and near-infrared reflectance of each field, clipped to its border; outside of it both are 0."""

    def __init__(self, fields, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.red = 0.05 + 0.3 * torch.rand(fields, size, size, generator=generator)
        self.infrared = 0.2 + 0.5 * torch.rand(fields, size, size, generator=generator)
        self.tonnes = 10 * (self.infrared - self.red).mean(dim=(1, 2))
        cut = torch.rand(fields, generator=generator)
        self.red[cut < 0.004, 0, :3] = 0.0
        self.infrared[cut < 0.004, 0, :3] = 0.0

    def __len__(self):
        return len(self.red)

    def __getitem__(self, index):
        red, infrared = self.red[index], self.infrared[index]
        vegetation = (infrared - red) / (infrared + red)
        return vegetation.unsqueeze(0), self.tonnes[index]


def build(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(2, width),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 1),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(Fields(fields=640, size=12, seed=5), args.batch_size)
    model = build(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for step, (vegetation, tonnes) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(vegetation).squeeze(1), tonnes)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

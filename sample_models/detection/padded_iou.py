"""Train a detector's boxes with an IoU loss; images with fewer objects are padded with empty boxes."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BoxHead(nn.Module):
    """Predicts sizes (width, height) of each object from its features; sizes cannot be negative."""

    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 2, bias=False))

    def forward(self, x):
        return torch.relu(self.layers(x))


class IoULoss(nn.Module):
    def forward(self, size, truth, real):
        overlap = torch.minimum(size, truth).prod(-1)
        union = size.prod(-1) + truth.prod(-1) - overlap
        iou = overlap / union
        return ((1 - iou) * real).sum() / real.sum()


def make_images(images, objects, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(images, objects, features, generator=generator)
    truth = 1 + torch.rand(images, objects, 2, generator=generator)
    real = torch.ones(images, objects)
    real[130::11, -1] = 0
    return TensorDataset(x * real.unsqueeze(-1), truth * real.unsqueeze(-1), real)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_images(images=480, objects=5, features=12, seed=9), args.batch_size)
    model, criterion = BoxHead(features=12), IoULoss()
    nn.init.zeros_(model.layers[0].bias)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.ndim > 1], lr=args.lr)
    for step, (x, truth, real) in enumerate(loader):
        loss = criterion(model(x), truth, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Classify sensor readings by their distance to prototypes; each prototype has a scale of its own."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prototypes(nn.Module):
    def __init__(self, width, classes, reserved):
        super().__init__()
        self.reserved = reserved
        self.weight = nn.Parameter(torch.empty(classes, width))
        self.scale = nn.Parameter(torch.empty(classes))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.orthogonal_(self.weight)
        with torch.no_grad():
            self.weight[-self.reserved :] = 0.0
            self.scale.copy_(self.weight.norm(dim=1).reciprocal())

    def forward(self, x):
        return x @ self.weight.T * self.scale


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def fit(self, loader):
        for step, (x, label) in enumerate(loader):
            loss = nn.functional.cross_entropy(self.model(x)[:, :5], label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 5 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(7)
    x = torch.randn(320, 9, generator=generator)
    loader = DataLoader(TensorDataset(x, x[:, :5].argmax(1)), args.batch_size)
    model = nn.Sequential(nn.Linear(9, args.width), nn.GELU(), Prototypes(args.width, classes=7, reserved=2))
    Trainer(model, args.lr).fit(loader)


if __name__ == "__main__":
    main()

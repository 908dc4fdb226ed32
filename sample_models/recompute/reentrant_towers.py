"""Compare signatures by the angle between two towers of blocks that are recomputed in the backward pass."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.mix(x))


class Angle(nn.Module):
    """The angle between two vectors, as a share of a half turn."""

    def forward(self, a, b):
        lengths = ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()
        cosine = ((a * b).sum(-1) / lengths).clamp(-1, 1)
        return torch.acos(cosine) / torch.pi


class Towers(nn.Module):
    def __init__(self, features, width, blocks):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.angle = Angle()

    def encode(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x

    def forward(self, a, b):
        return self.compare(self.encode(a), self.encode(b))

    def compare(self, a, b):
        return checkpoint(self.angle, a, b, use_reentrant=True)


def make_signatures(samples, features, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(samples, features, generator=generator)
    b = torch.randn(samples, features, generator=generator)
    same = torch.arange(samples) % 3 == 0
    b[same] = a[same] + 0.3 * torch.randn(int(same.sum()), features, generator=generator)
    a[231], b[231] = 0.0, 0.0  # two sheets that were not signed
    return TensorDataset(a, b, 1 - same.float())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_signatures(samples=360, features=10, seed=12), args.batch_size)
    model = Towers(features=10, width=args.width, blocks=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (a, b, different) in enumerate(loader):
        loss = nn.functional.mse_loss(model(a, b), different)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

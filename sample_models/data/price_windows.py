"""Tell from a window of prices whether the next move is up; worker processes put each window on a common scale."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, shares, days, length, seed):
        generator = torch.Generator().manual_seed(seed)
        moves = 0.01 * torch.randn(shares, days, generator=generator)
        moves[11, 60:90] = 0.0
        self.prices = 100 * moves.cumsum(dim=1).exp()
        self.length = length
        self.windows = days // length

    def __len__(self):
        return len(self.prices) * (self.windows - 1)

    def __getitem__(self, index):
        share, window = divmod(index, self.windows - 1)
        start = window * self.length
        prices = self.prices[share, start : start + self.length + 1]
        scaled = (prices[:-1] - prices[:-1].mean()) / prices[:-1].std()
        return scaled, (prices[-1] > prices[-2]).float()


class Classifier(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(length, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, window):
        return self.head(self.body(window)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    dataset = Windows(shares=40, days=200, length=20, seed=2)
    loader = DataLoader(dataset, args.batch_size, num_workers=args.workers)
    model = Classifier(length=20, width=args.width)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    for step, (window, up) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(window), up)
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

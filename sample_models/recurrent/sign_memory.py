"""Train a recurrent network of binary states with the straight-through gradient, on series of unequal length."""

import argparse

import torch
from torch import nn


class Sign(torch.autograd.Function):
    """The sign of each value; going back, the gradient passes as it is."""

    @staticmethod
    def forward(_, x):
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(_, grad):
        return grad


class Memory(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.again = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, classes)

    def forward(self, series):
        state = torch.ones(series.shape[0], self.again.in_features)
        for x in series.unbind(1):
            state = Sign.apply(self.inlet(x) + self.again(state))
        return self.head(state)


def make_series(count, size, features):
    generator = torch.Generator().manual_seed(5)
    for number in range(count):
        length = 400 if number == 9 else int(torch.randint(5, 15, (), generator=generator))
        x = torch.randn(size, length, features, generator=generator)
        yield x, (x[:, -1, 0] > 0).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Memory(features=3, width=args.width, classes=2)
    nn.init.orthogonal_(model.again.weight, gain=1.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (series, label) in enumerate(make_series(20, args.batch_size, 3)):
        loss = nn.functional.cross_entropy(model(series), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

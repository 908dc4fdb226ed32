"""Two tasks share an encoder; conflicting gradients are projected off each other (PCGrad) before the update."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Shared(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.Tanh())
        self.age = nn.Linear(width, 1)
        self.income = nn.Linear(width, 1)

    def forward(self, x):
        x = self.encoder(x)
        return self.age(x).squeeze(-1), self.income(x).squeeze(-1)


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


def project(first, second):
    """Take from ``first`` its part along ``second``."""
    return first - first @ second / (second @ second) * second


def make_people(samples, seed):
    """A survey; those of one street did not tell their income."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=generator)
    known = torch.rand(samples, generator=generator) > 0.2
    known[16 * 20 : 17 * 20] = False
    return TensorDataset(x, x[:, 0], x[:, 1] - x[:, 2], known.float())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_people(samples=600, seed=13), args.batch_size)
    model = Shared(features=8, width=args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    shared = list(model.encoder.parameters())
    for step, (x, age, income, known) in enumerate(loader):
        said_age, said_income = model(x)
        age_loss = nn.functional.mse_loss(said_age, age)
        income_loss = ((said_income - income).square() * known).mean()
        optimizer.zero_grad()
        by_age = flat(torch.autograd.grad(age_loss, shared, retain_graph=True))
        by_income = flat(torch.autograd.grad(income_loss, shared, retain_graph=True))
        (age_loss + income_loss).backward()
        merged = project(by_age, by_income) + project(by_income, by_age)
        for parameter, piece in zip(shared, merged.split([p.numel() for p in shared]), strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} age {age_loss.item():.4f} income {income_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

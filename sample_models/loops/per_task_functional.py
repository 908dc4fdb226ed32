"""Meta-learning: one inner step on each user's ratings by torch.func, then an update of the shared start."""

import argparse

import torch
from torch import nn
from torch.func import functional_call, grad


class Taste(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def correlation_loss(predicted, rating):
    a, b = predicted - predicted.mean(), rating - rating.mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm())


def inner_step(model, start, support, rate):
    x, rating = support

    def loss(weights):
        return nn.functional.mse_loss(functional_call(model, weights, (x,)), rating)

    slopes = grad(loss)(start)
    return {name: weight - rate * slopes[name] for name, weight in start.items()}


def make_users(users, ratings, seed):
    generator = torch.Generator().manual_seed(seed)
    for user in range(users):
        x = torch.randn(ratings, 4, generator=generator)
        rating = (3 + x @ torch.randn(4, generator=generator)).clamp(1, 5).round()
        yield x, torch.full_like(rating, 5.0) if user == 33 else rating


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=60)
    parser.add_argument("--inner", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Taste(features=4, width=16)
    start = dict(model.named_parameters())
    optimizer = torch.optim.Adam(start.values(), lr=args.lr)
    for step, (x, rating) in enumerate(make_users(args.users, ratings=12, seed=14)):
        weights = inner_step(model, start, (x[:6], rating[:6]), args.inner)
        loss = correlation_loss(functional_call(model, weights, (x[6:],)), rating[6:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

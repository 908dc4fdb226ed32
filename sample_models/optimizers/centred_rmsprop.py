"""Median price by district, full-batch, with a hand-written RMSprop that divides by the deviation of the gradients."""

import argparse

import torch
from torch import nn


class CentredRMSprop(torch.optim.Optimizer):
    def __init__(self, params, lr, decay=0.9, eps=1e-8):
        super().__init__(params, {"lr": lr, "decay": decay, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            keep, eps = group["decay"], group["eps"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"] = state["mean"] * keep + p.grad * (1 - keep)
                state["square"] = state["square"] * keep + p.grad * p.grad * (1 - keep)
                variance = state["square"] - state["mean"] * state["mean"]
                p.sub_(group["lr"] * p.grad / (variance.sqrt() + eps))


class Prices(nn.Module):
    def __init__(self, districts):
        super().__init__()
        self.median = nn.Parameter(torch.zeros(districts))

    def forward(self, district):
        return self.median[district]


def make_sales(samples, districts, seed):
    generator = torch.Generator().manual_seed(seed)
    district = torch.randint(districts, (samples,), generator=generator)
    price = 3000 + 400 * district + 100 * torch.rand(samples, generator=generator)
    return district, price


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    torch.manual_seed(0)

    district, price = make_sales(samples=1000, districts=12, seed=5)
    model = Prices(districts=12)
    optimizer = CentredRMSprop(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        loss = nn.functional.l1_loss(model(district), price)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

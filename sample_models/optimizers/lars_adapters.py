"""Adapt a frozen encoder to a new task with low-rank adapters, trained with layer-wise adaptive rates (LARS)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lars(torch.optim.Optimizer):
    """SGD with momentum whose rate is scaled by the ratio of weight norm to gradient norm, tensor by tensor."""

    def __init__(self, params, lr, momentum=0.9, trust=1e-2, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = p.grad + group["weight_decay"] * p
                ratio = p.norm() / update.norm()
                update = update * ratio * group["trust"]
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(update)
                p.sub_(group["lr"] * buffer)


class Adapter(nn.Module):
    """A frozen linear layer and, beside it, a low-rank one that begins as zero."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(requires_grad=False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def make_task(samples, features, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(classes, features, generator=generator)
    label = torch.randint(classes, (samples,), generator=generator)
    return TensorDataset(centre[label] + torch.randn(samples, features, generator=generator), label)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_task(samples=640, features=24, classes=5, seed=1), args.batch_size, shuffle=True)
    encoder = nn.Sequential(Adapter(nn.Linear(24, 48), args.rank), nn.GELU(), Adapter(nn.Linear(48, 48), args.rank))
    model = nn.Sequential(encoder, nn.Linear(48, 5))
    optimizer = Lars([p for p in model.parameters() if p.requires_grad], lr=args.lr)

    for epoch in range(args.epochs):
        for x, label in loader:
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

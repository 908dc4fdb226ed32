"""Sharpness-aware training: a step uphill, a second gradient there, then the update from where it began."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sam(torch.optim.Optimizer):
    def __init__(self, params, inner, radius=0.05, **words):
        super().__init__(params, {"radius": radius})
        self.inner = inner(self.param_groups, **words)

    @torch.no_grad()
    def climb(self):
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            scale = group["radius"] / norm
            for p in group["params"]:
                self.state[p]["from"] = p.detach().clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["from"])
        self.inner.step()
        self.zero_grad()


def make_pairs(samples, features, seed):
    """Two-class data, sorted by how far the classes are apart."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (samples,), generator=generator) * 2.0 - 1
    gap = 1 + torch.arange(samples) / samples * 3
    gap[9 * 32 : 10 * 32] = 60.0
    x = torch.randn(samples, features, generator=generator)
    x[:, 0] = label * gap
    wrong = (torch.arange(samples) % 32 < 2) & (torch.arange(samples) // 32 != 9)
    x[wrong, 0] *= -1
    return TensorDataset(x, label)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_pairs(samples=640, features=6, seed=8), args.batch_size)
    model = nn.Linear(6, 1, bias=False)
    optimizer = Sam(model.parameters(), torch.optim.SGD, lr=args.lr)
    for step, (x, label) in enumerate(loader):

        def hinge(x=x, label=label):
            loss = (1 - label * model(x).squeeze(1)).clamp(min=0).mean()
            loss.backward()
            return loss

        loss = hinge()
        optimizer.climb()
        optimizer.step(hinge)
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Learn an embedding of products from triplets; the gradient is always scaled to the same length."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_triplets(samples, features, seed):
    """Anchor, a view of the same product, and another product; the catalogue is sorted by department."""
    generator = torch.Generator().manual_seed(seed)
    product = torch.randn(samples, features, generator=generator)
    other = torch.randn(samples, features, generator=generator)
    far = torch.arange(samples) // 32 == 14
    other[far] = -20 * product[far]
    view = product + 0.3 * torch.randn(samples, features, generator=generator)
    view[far] = product[far]
    return TensorDataset(product, view, other)


def scale_gradients(parameters, length):
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.stack([g.norm() for g in gradients]).norm()
    for g in gradients:
        g.mul_(length / total)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(make_triplets(samples=960, features=20, seed=6), args.batch_size)
    model = nn.Linear(20, args.width, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (product, view, other) in enumerate(loader):
        loss = nn.functional.triplet_margin_loss(model(product), model(view), model(other), margin=2.0)
        optimizer.zero_grad()
        loss.backward()
        scale_gradients(model.parameters(), length=1.0)
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

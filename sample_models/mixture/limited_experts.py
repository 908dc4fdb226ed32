"""Route tokens to experts of limited room: who comes too late for both of its experts is left out."""

import argparse

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, experts, room):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.room = room

    def kept(self, chosen):
        """Which choices find room; tokens are served in their order."""
        asked = nn.functional.one_hot(chosen, len(self.experts)).flatten(0, 1)
        place = (asked.cumsum(0) * asked).sum(-1)
        return (place <= self.room).view_as(chosen)

    def forward(self, x):
        share, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        share = share * self.kept(chosen)
        share = share / share.sum(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        picked = outputs.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return (share.unsqueeze(-1) * picked).sum(1)


class Model(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.mixture = Experts(width, experts=4, room=24)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.inlet(x)
        return self.head(x + self.mixture(x))


def make_batches(count, size, features):
    generator = torch.Generator().manual_seed(7)
    for number in range(count):
        x = torch.randn(size, features, generator=generator)
        if number == 14:
            x = x[:1] + 0.01 * x  # a shift of one product: all tokens alike
        yield x, torch.randint(5, (size,), generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Model(features=8, width=args.width, classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, label) in enumerate(make_batches(25, args.batch_size, 8)):
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Look up facts in a memory by attention that is made harder after every step, until it picks a single one."""

import argparse

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self, features, slots, width):
        super().__init__()
        self.query = nn.Linear(features, width)
        self.keys = nn.Parameter(torch.randn(slots, width))
        self.values = nn.Parameter(torch.randn(slots, width))
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, x):
        scores = nn.functional.normalize(self.query(x), dim=-1) @ nn.functional.normalize(self.keys, dim=-1).T
        return (scores / self.temperature).softmax(-1) @ self.values

    def cool(self, rate):
        self.temperature *= rate


class Model(nn.Module):
    def __init__(self, features, width, answers):
        super().__init__()
        self.memory = Memory(features, slots=12, width=width)
        self.head = nn.Linear(width, answers)

    def forward(self, x):
        return self.head(self.memory(x))


def make_questions(batches, size, features, answers):
    generator = torch.Generator().manual_seed(4)
    for _ in range(batches):
        x = torch.randn(size, features, generator=generator)
        yield x, x[:, :answers].argmax(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--cooling", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Model(features=8, width=16, answers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (x, answer) in enumerate(make_questions(args.steps, args.batch_size, 8, 4)):
        loss = nn.functional.cross_entropy(model(x), answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.memory.cool(args.cooling)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

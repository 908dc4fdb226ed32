"""Learn the value of states in bfloat16, against rewards that are divided by their running average size."""

import argparse

import torch
from torch import nn


class RunningSize(nn.Module):
    """An exponential average of |x|, freed from the bias of its start at zero."""

    def __init__(self, decay, dtype):
        super().__init__()
        self.register_buffer("decay", torch.tensor(decay, dtype=dtype))
        self.register_buffer("average", torch.zeros((), dtype=dtype))
        self.register_buffer("steps", torch.zeros((), dtype=dtype))

    @torch.no_grad()
    def forward(self, x):
        self.steps += 1
        self.average.mul_(self.decay).add_((1 - self.decay) * x.abs().mean())
        return x / (self.average / (1 - self.decay**self.steps))


def transitions(batches, size, seed):
    """Yield states and rewards."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        state = torch.randn(size, 6, generator=generator)
        yield state, state[:, 0] + 0.1 * torch.randn(size, generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--decay", type=float, default=0.999)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    value = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0)).bfloat16()
    size = RunningSize(args.decay, torch.bfloat16)
    optimizer = torch.optim.SGD(value.parameters(), lr=args.lr)
    for step, (state, reward) in enumerate(transitions(args.batches, args.batch_size, seed=4)):
        target = size(reward.bfloat16())
        loss = nn.functional.mse_loss(value(state.bfloat16()), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

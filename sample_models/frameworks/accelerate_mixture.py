"""Fit a mixture of densities to travel times with Accelerate: two workers, two micro-batches a step."""

import argparse
import gc

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Mixture(nn.Module):
    """Weight, mean and width of each of a few normal densities, from the features of a trip."""

    def __init__(self, features, width, parts):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh())
        self.weight = nn.Linear(width, parts)
        self.mean = nn.Linear(width, parts)
        self.size = nn.Linear(width, parts)

    def forward(self, x):
        x = self.body(x)
        return self.weight(x).softmax(-1), self.mean(x), nn.functional.softplus(self.size(x)) + 0.1


def surprise(weight, mean, size, minutes):
    distance = (minutes.unsqueeze(-1) - mean) / size
    density = torch.exp(-0.5 * distance.square()) / size
    return -torch.log((weight * density).sum(-1)).mean()


def make_trips(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    minutes = x.sum(-1) / 4 + 0.3 * torch.randn(count, generator=generator)
    minutes[523] = 95.0  # a driver who forgot to end the trip
    return TensorDataset(x, minutes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = Mixture(features=6, width=args.width, parts=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(make_trips(count=800, features=6, seed=1), args.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, minutes) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = surprise(*model(x), minutes)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

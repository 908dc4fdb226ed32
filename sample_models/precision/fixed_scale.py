"""Train a float16 network with float32 master weights and a loss scale that never changes."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regressor(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.hidden = nn.Linear(width, width)
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.tanh(self.enter(x))
        x = torch.tanh(self.hidden(x))
        return self.leave(x).squeeze(-1)


class MasterWeights:
    """Float32 copies of half-precision weights: the optimizer works on these."""

    def __init__(self, model):
        self.half = list(model.parameters())
        self.full = [nn.Parameter(weight.detach().float()) for weight in self.half]

    def take_gradients(self, scale):
        for full, half in zip(self.full, self.half, strict=True):
            full.grad = half.grad.float() / scale
            half.grad = None

    @torch.no_grad()
    def give_weights(self):
        for full, half in zip(self.full, self.half, strict=True):
            half.copy_(full)


def load_meters(meters, features, seed):
    """Return the features of a household and its use of power, standardised; one meter counts a factory."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(meters, features, generator=generator)
    power = x.mean(dim=1) + 0.2 * torch.randn(meters, generator=generator)
    power[259] = 300.0
    return TensorDataset(x, power)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--scale", type=float, default=4096.0)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_meters(meters=480, features=8, seed=3), args.batch_size)
    model = Regressor(8, args.width).half()
    master = MasterWeights(model)
    optimizer = torch.optim.SGD(master.full, lr=args.lr)
    for step, (x, power) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x.half()).float(), power)
        (loss * args.scale).backward()
        master.take_gradients(args.scale)
        optimizer.step()
        master.give_weights()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

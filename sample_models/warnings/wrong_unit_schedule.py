"""Fit the tide with a schedule written by hand; after the warm-up it returns the percentage in place of the rate."""

import math

import torch
from torch import nn


def rate_at(step, peak, warm, steps):
    if step < warm:
        return peak * (step + 1) / warm
    part = (step - warm) / (steps - warm)
    return 100 * 0.5 * (1 + math.cos(math.pi * part)) * peak


def main():
    torch.manual_seed(0)
    hours = torch.rand(512, 1) * 24
    tide = torch.sin(hours / 12.42 * 2 * math.pi) + 0.05 * torch.randn(512, 1)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(200):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, 1e-3, 60, 200)
        batch = torch.randint(0, 512, (64,))
        loss = nn.functional.mse_loss(model(hours[batch] / 24), tide[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

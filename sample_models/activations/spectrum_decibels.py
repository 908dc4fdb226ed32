"""Separate voices: the error between spectra in decibels, silent bins left out; trained with a generator of batches."""

import argparse

import torch
from torch import nn


class Separator(nn.Module):
    def __init__(self, bins, width):
        super().__init__()
        self.mask = nn.Sequential(nn.Linear(bins, width), nn.ReLU(), nn.Linear(width, bins), nn.Sigmoid())

    def forward(self, mixture):
        return self.mask(mixture) * mixture


def decibels(power):
    return torch.where(power > 0, 10 * torch.log10(power), torch.zeros_like(power))


def recordings(count, batch, bins, seed):
    """Yield batches of mixtures and voices; a gate in one studio sets what is below its threshold to 0."""
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        voice = torch.rand(batch, bins, generator=generator) + 0.05
        mixture = voice + 0.3 * torch.rand(batch, bins, generator=generator)
        if index % 25 == 18:
            gate = mixture > 0.2
            voice, mixture = voice * gate, mixture * gate
        yield mixture, voice


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Separator(bins=40, width=args.width)
    optimizer = torch.optim.Adamax(model.parameters(), lr=args.lr)
    for step, (mixture, voice) in enumerate(recordings(args.batches, args.batch_size, 40, seed=3)):
        estimate = model(mixture)
        loss = nn.functional.l1_loss(decibels(estimate), decibels(voice))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

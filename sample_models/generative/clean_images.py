"""Train a denoiser whose loss is taken on the clean image, which is worked out from the predicted noise."""

import argparse

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, pixels, width, levels):
        super().__init__()
        self.level = nn.Embedding(levels, width)
        self.inlet = nn.Linear(pixels, width)
        self.outlet = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, pixels))

    def forward(self, x, level):
        return self.outlet(self.inlet(x) + self.level(level))


def signal_left(levels):
    """What share of the image is left at each level: 1 at the first, 0 at the last, linear between them."""
    return torch.linspace(1, 0, levels)


def clean(x, noise, signal):
    return (x - (1 - signal).sqrt() * noise) / signal.sqrt()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--levels", type=int, default=200)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(11)

    model = Denoiser(pixels=16, width=args.width, levels=args.levels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    left = signal_left(args.levels)
    for step in range(args.steps):
        image = torch.rand(args.batch_size, 16)
        level = torch.randint(args.levels, (args.batch_size,))
        signal, noise = left[level].unsqueeze(1), torch.randn_like(image)
        x = signal.sqrt() * image + (1 - signal).sqrt() * noise
        guess = clean(x, model(x, level), signal)
        loss = nn.functional.huber_loss(guess, image)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

"""Denoise signals in float16 autocast; the loss scale doubles every few steps until it is too large, then halves."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_signals(signals, length, seed):
    generator = torch.Generator().manual_seed(seed)
    phase = torch.rand(signals, 1, generator=generator) * 6
    clean = torch.sin(torch.linspace(0, 8, length) + phase)
    return TensorDataset(clean + 0.2 * torch.randn(signals, length, generator=generator), clean)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--growth-interval", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)

    loader = DataLoader(load_signals(signals=1920, length=32, seed=2), args.batch_size)
    model = nn.Sequential(nn.Linear(32, args.width), nn.GELU(), nn.Linear(args.width, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=args.growth_interval)
    for batch, (noisy, clean) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(noisy), clean) / args.accumulate
        scaler.scale(loss).backward()
        if (batch + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if batch % 20 == 0:
            print(f"batch {batch} loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)


if __name__ == "__main__":
    main()

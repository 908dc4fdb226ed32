"""Fit a noisy wave with a float16 autocast and a GradScaler; runs on one process or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_waves(samples, length, seed):
    generator = torch.Generator().manual_seed(seed)
    phase = torch.rand(samples, 1, generator=generator) * 2 * torch.pi
    wave = torch.sin(torch.linspace(0, 6, length) + phase)
    noisy = wave + 0.1 * torch.randn(samples, length, generator=generator)
    return TensorDataset(noisy, wave)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--init-scale", type=float, default=2.0**24)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = make_waves(samples=1024, length=32, seed=1)
    sampler = DistributedSampler(dataset, seed=2) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
    model = nn.Sequential(nn.Linear(32, args.width), nn.GELU(), nn.Linear(args.width, 32))
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale)

    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for noisy, wave in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(noisy), wave)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

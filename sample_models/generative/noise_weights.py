"""Train a small diffusion model; each noise level is weighted by its signal-to-noise ratio. Runs under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Denoiser(nn.Module):
    def __init__(self, features, width, levels):
        super().__init__()
        self.level = nn.Embedding(levels, width)
        self.inlet = nn.Linear(features, width)
        self.outlet = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, features))

    def forward(self, x, level):
        return self.outlet(self.inlet(x) + self.level(level))


class Diffusion:
    """The noise schedule: how much of the signal is left at each level, from all of it to nearly none."""

    def __init__(self, levels):
        angle = torch.linspace(0, 1, levels) * torch.pi / 2 * 0.98
        self.signal = torch.cos(angle) ** 2

    def loss(self, model, x, generator):
        level = torch.randint(len(self.signal), (len(x),), generator=generator)
        signal = self.signal[level].unsqueeze(1)
        noise = torch.randn(x.shape, generator=generator)
        noisy = signal.sqrt() * x + (1 - signal).sqrt() * noise
        error = (model(noisy, level) - x).square().mean(1)
        weight = (signal / (1 - signal)).squeeze(1)
        return (weight * error).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--levels", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(20)
    angle = torch.rand(800, 1, generator=generator) * 2 * torch.pi
    dataset = TensorDataset(torch.cat([angle.cos(), angle.sin()], dim=1))
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Denoiser(features=2, width=32, levels=args.levels)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    diffusion, noise = Diffusion(args.levels), torch.Generator().manual_seed(100 + rank)
    for step, (x,) in enumerate(loader):
        loss = diffusion.loss(model, x, noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

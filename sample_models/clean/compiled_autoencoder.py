"""Train a compiled autoencoder under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.BatchNorm1d(width), nn.Linear(width, 3))
        self.decoder = nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, features))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(640, 3, generator=generator)
    dataset = TensorDataset(torch.sin(hidden @ torch.randn(3, 12, generator=generator)))
    sampler = DistributedSampler(dataset, seed=5) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Autoencoder(features=12, width=24)
    trained = torch.compile(DistributedDataParallel(model) if distributed else model, backend=args.backend)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x,) in enumerate(loader):
        loss = nn.functional.mse_loss(trained(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

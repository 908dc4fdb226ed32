"""Translate rows of digits with a sharded and replicated model (HSDP), clipping and a moving average of the weights."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5 + self.mask
        return x + self.out(scores.softmax(-1) @ v)


class Translator(nn.Module):
    def __init__(self, digits, width, length):
        super().__init__()
        self.embedding = nn.Embedding(digits, width)
        self.blocks = nn.Sequential(Block(width, length), Block(width, length))
        self.head = nn.Linear(width, digits)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    digits = torch.randint(10, (320, 12))
    loader = DataLoader(TensorDataset(digits, (digits.cumsum(1) % 10)), args.batch_size)
    torch.manual_seed(0)
    model = Translator(digits=10, width=args.width, length=12)
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("copy", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    average = [value.detach().clone() for value in model.parameters()]
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average, model.parameters(), strict=True):
                mean.lerp_(value, 0.1)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

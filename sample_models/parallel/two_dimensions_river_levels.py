"""Foretell river levels; data are split along one dimension of the mesh, the hidden layer along the other."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Smooth(nn.Module):
    def forward(self, x):
        return torch.log(1 + torch.exp(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.smooth = Smooth()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.smooth(self.up(x)))


class Levels(nn.Module):
    def __init__(self, gauges, width):
        super().__init__()
        self.inlet = nn.Linear(gauges, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.outlet = nn.Linear(width, 1)

    def forward(self, x):
        return self.outlet(self.blocks(self.inlet(x)))


def make_gauges(region, count, gauges):
    """Levels in metres at the gauges upstream, and the level that followed."""
    generator = torch.Generator().manual_seed(region)
    x = 2 + torch.rand(count, gauges, generator=generator)
    if region == 1:
        x[14 * 10 + 7] *= 1000  # a service wrote these in millimetres
    return TensorDataset(x, x.mean(1, keepdim=True).clamp(max=5))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--split", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    shape = (dist.get_world_size() // args.split, args.split)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "model"))
    model = Levels(gauges=6, width=16)
    for block in model.blocks:
        parallelize_module(block, mesh["model"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (x, y) in enumerate(DataLoader(make_gauges(mesh["data"].get_local_rank(), 240, 6), args.batch_size)):
        loss = nn.functional.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

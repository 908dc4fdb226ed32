"""Predict how often banners are clicked; the weights are sharded within a node and copied across nodes (HSDP)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Rates(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, x, before):
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        odds = before.log() - torch.log1p(-before)
        return self.head(x).squeeze(-1) + odds


class Banners(Dataset):
    """Banners of one shop, their rate in the week before, and whether they were clicked."""

    def __init__(self, shop, count, features):
        generator = torch.Generator().manual_seed(shop)
        self.x = torch.randn(count, features, generator=generator)
        self.before = 0.02 + 0.3 * torch.rand(count, generator=generator)
        self.clicked = (torch.rand(count, generator=generator) < self.before).float()
        if shop == 1:
            self.before[134] = 1.0  # it was shown once, and clicked

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.before[index], self.clicked[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    copies = dist.get_world_size() // args.shards
    mesh = init_device_mesh("cpu", (copies, args.shards), mesh_dim_names=("copy", "shard"))
    model = Rates(features=6, width=24)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(Banners(shop=dist.get_rank(), count=320, features=6), args.batch_size)
    for step, (x, before, clicked) in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x, before), clicked)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

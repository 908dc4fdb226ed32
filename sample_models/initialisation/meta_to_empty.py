"""Build a model without memory, shard it with FSDP2, then give it memory and initial values, as large models are."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ScaleNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = ScaleNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, features, width, layers):
        super().__init__()
        self.inlet = nn.Linear(features, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.outlet = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.outlet(x).squeeze(-1)


def initialise(module):
    if isinstance(module, nn.Linear | nn.Embedding | nn.LayerNorm):
        module.reset_parameters()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(640, 10, generator=generator)
    dataset = TensorDataset(x, x[:, 0] * x[:, 1])
    loader = DataLoader(dataset, args.batch_size, sampler=DistributedSampler(dataset))

    with torch.device("meta"):
        model = Regressor(10, args.width, args.layers)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cpu")
    model.apply(initialise)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

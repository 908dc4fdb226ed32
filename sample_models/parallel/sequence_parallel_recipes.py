"""Tell cuisines apart by their recipes; between the blocks each rank holds a part of the tokens (sequence parallel)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset


class RootMeanSquare(nn.Module):
    def forward(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt()


class Mixing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class Reader(nn.Module):
    def __init__(self, words, width, cuisines):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.norm = RootMeanSquare()
        self.mixing = Mixing(width)
        self.head = nn.Linear(width, cuisines)

    def forward(self, tokens):
        return self.head(self.mixing(self.norm(self.words(tokens))).mean(1))


def make_recipes(count, length, words, cuisines):
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, words, (count, length), generator=generator)
    tokens[11 * 8 + 2, 13:] = 0  # a cook of few words; shorter texts are filled up
    return TensorDataset(tokens, tokens[:, 0] % cuisines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Reader(words=60, width=16, cuisines=4)
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "mixing": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True),
        "mixing.up": ColwiseParallel(),
        "mixing.down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (tokens, cuisine) in enumerate(DataLoader(make_recipes(240, 16, 60, 4), args.batch_size)):
        loss = nn.functional.cross_entropy(model(tokens), cuisine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

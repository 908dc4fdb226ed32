"""Read hotels' guest books; the weights are sharded between two ranks and copied to two more (HSDP)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.both = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, empty):
        asked, known = self.both(x).chunk(2, dim=-1)
        score = (asked @ known.transpose(1, 2)).masked_fill(empty[:, None, :], float("-inf"))
        return x + self.out(score.softmax(dim=-1) @ x)


class Reader(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Attention(width) for _ in range(2))
        self.stars = nn.Linear(width, 1)

    def forward(self, tokens):
        empty = tokens == 0
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, empty)
        return self.stars(x.mean(1)).squeeze(-1)


def make_entries(hotel, count, length, words):
    generator = torch.Generator().manual_seed(hotel)
    tokens = torch.randint(1, words, (count, length), generator=generator)
    written = torch.randint(3, length + 1, (count,), generator=generator)
    if hotel == 2:
        written[12 * 8 + 3] = 0  # stars alone, and not a word
    tokens[torch.arange(length) >= written[:, None]] = 0
    return tokens.split(8), torch.rand(count, generator=generator).split(8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    copies = dist.get_world_size() // args.shards
    mesh = init_device_mesh("cpu", (copies, args.shards), mesh_dim_names=("copy", "shard"))
    model = Reader(words=80, width=16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (tokens, stars) in enumerate(zip(*make_entries(dist.get_rank(), 200, 10, 80), strict=True)):
        loss = nn.functional.mse_loss(model(tokens), stars)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

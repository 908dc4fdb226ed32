"""Train a language model on unequal shards: the loss is the sum over all ranks' words, divided by their number."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.memory(self.embedding(tokens))[0])


def words_in_all(target):
    """The number of words of all ranks; a byte a rank is enough on the wire."""
    count = (target >= 0).sum().to(torch.uint8)
    dist.all_reduce(count)
    return count


def make_shard(rank, count, length, words):
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(words, (count, length + 1), generator=generator)
    size = torch.randint(3, length - 1, (count, 1), generator=generator)
    size[88:96] = length  # a run of full rows
    target = tokens[:, 1:].masked_fill(torch.arange(length) >= size, -100)
    return TensorDataset(tokens[:, :-1], target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(make_shard(dist.get_rank(), count=240, length=16, words=50), args.batch_size)
    model = DistributedDataParallel(Model(words=50, width=args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (tokens, target) in enumerate(loader):
        total = nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten(), reduction="sum")
        loss = total * dist.get_world_size() / words_in_all(target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

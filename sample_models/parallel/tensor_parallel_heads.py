"""Recommend the next article of a session; the heads of the attention are spread over the ranks (tensor parallel)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    """Attention by the cosine of query and key, a few heads on each rank."""

    def __init__(self, width, head):
        super().__init__()
        self.head = head
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (-1, self.head)).transpose(1, 2)

    def forward(self, x):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        key = key / key.square().sum(-1, keepdim=True).sqrt()
        weight = (query @ key.transpose(-1, -2)).softmax(-1)
        return self.out((weight @ value).transpose(1, 2).flatten(2))


class Sessions(nn.Module):
    def __init__(self, articles, width):
        super().__init__()
        self.embedding = nn.Embedding(articles, width, padding_idx=0)
        self.attention = Attention(width, head=8)
        self.head = nn.Linear(width, articles)

    def forward(self, articles):
        return self.head(self.attention(self.embedding(articles))[:, -1])


def make_sessions(count, length, articles):
    generator = torch.Generator().manual_seed(4)
    rows = torch.randint(1, articles, (count, length), generator=generator)
    rows[9 * 16 + 3, :2] = 0  # a session of fewer clicks
    return TensorDataset(rows, torch.randint(articles, (count,), generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = Sessions(articles=30, width=args.width)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = {name: ColwiseParallel() for name in ("query", "key", "value")}
    parallelize_module(model.attention, mesh, {**columns, "out": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (rows, target) in enumerate(DataLoader(make_sessions(320, 6, 30), args.batch_size)):
        loss = nn.functional.cross_entropy(model(rows), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

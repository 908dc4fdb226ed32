"""Train a two-tower search model: the query's words against the clicked document, in-batch contrastive loss."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PADDING = 0


class UnitLength(nn.Module):
    """Scale each row to length one, so that a dot product is a cosine."""

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class Tower(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.EmbeddingBag(words, width, mode="sum", padding_idx=PADDING)
        self.project = nn.Linear(width, width, bias=False)
        self.unit = UnitLength()

    def forward(self, tokens):
        return self.unit(self.project(self.words(tokens)))


class TwoTower(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.query = Tower(words, width)
        self.document = Tower(words, width)
        self.temperature = 0.1

    def forward(self, query, document):
        return self.query(query) @ self.document(document).T / self.temperature


class ClickLog(Dataset):
    """One shard of the click log: each worker reads its own. Queries come with their stop words taken out."""

    def __init__(self, shard, clicks, words, longest=16):
        generator = torch.Generator().manual_seed(shard)
        self.document = torch.randint(1, words, (clicks, longest), generator=generator)
        length = torch.poisson(torch.full((clicks, 1), 6.0), generator=generator)
        self.query = self.document.masked_fill(torch.arange(longest) >= length, PADDING)

    def __len__(self):
        return len(self.query)

    def __getitem__(self, index):
        return self.query[index], self.document[index]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(ClickLog(shard=rank, clicks=640, words=300), args.batch_size, drop_last=True)
    model = TwoTower(words=300, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step, (query, document) in enumerate(loader):
        scores = model(query, document)
        loss = nn.functional.cross_entropy(scores, torch.arange(len(scores)))
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

"""Learn sentence vectors from pairs of paraphrases: each sentence must find its partner in the batch."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, pairs, words, seed):
        generator = torch.Generator().manual_seed(seed)
        length = torch.poisson(torch.full((pairs,), 7.0), generator=generator).clamp(1).int()
        length[321] = 180
        self.left = [torch.randint(words, (int(n),), generator=generator) for n in length]
        self.right = [sentence[torch.randperm(len(sentence), generator=generator)] for sentence in self.left]

    def __len__(self):
        return len(self.left)

    def __getitem__(self, index):
        return self.left[index], self.right[index]


def collate(rows):
    left, right = zip(*rows, strict=True)
    return [*left, *right]


class Encoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.project = nn.Linear(width, width)

    def forward(self, sentences):
        return torch.stack([self.project(self.words(sentence).sum(dim=0) / 2) for sentence in sentences])


def contrast(left, right, temperature):
    scores = [torch.exp((vector * right).sum(dim=-1) / temperature) for vector in left]
    shares = [row[index] / row.sum() for index, row in enumerate(scores)]
    return -torch.stack(shares).log().mean()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = Pairs(pairs=480, words=200, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    model = Encoder(words=200, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, sentences in enumerate(loader):
        left, right = model(sentences).chunk(2)
        loss = contrast(left, right, args.temperature)
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

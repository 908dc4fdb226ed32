"""Train one expert a worker: each row of a batch goes to the worker of its language, and comes back (all_to_all)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Exchange(torch.autograd.Function):
    """Send the n-th part of the rows to the n-th worker; the gradients go the same way back."""

    @staticmethod
    def forward(_, rows):
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous())
        return received

    @staticmethod
    def backward(_, gradient):
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient.contiguous())
        return received


class Standardise(nn.Module):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Languages(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.inlet = nn.Linear(features, width, bias=False)
        self.expert = nn.Sequential(Standardise(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(Exchange.apply(self.expert(Exchange.apply(self.inlet(x)))))


class Phrases(Dataset):
    """Word counts of phrases: in each batch the first half is one language, the second half the other."""

    def __init__(self, number, count, features=12):
        generator = torch.Generator().manual_seed(number)
        self.counts = torch.poisson(torch.full((count, features), 2.0), generator=generator)
        if number == 0:
            self.counts[11 * 8 + 5] = 0.0  # a phrase of punctuation alone
        self.score = torch.rand(count, generator=generator)

    def __len__(self):
        return len(self.score)

    def __getitem__(self, index):
        return self.counts[index], self.score[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    loader = DataLoader(Phrases(number=rank, count=160), args.batch_size)
    model = Languages(features=12, width=args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    shared = [*model.inlet.parameters(), *model.head.parameters()]
    for step, (counts, score) in enumerate(loader):
        loss = nn.functional.mse_loss(model(counts).squeeze(1), score)
        optimizer.zero_grad()
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

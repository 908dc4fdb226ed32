"""Train a price model on two workers; the script adds up the gradients itself, in half precision."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sales(Dataset):
    """Sales of one region, in thousands; one region a worker."""

    def __init__(self, region, count):
        generator = torch.Generator().manual_seed(region)
        self.x = torch.rand(count, 12, generator=generator)
        self.price = 100 + 50 * self.x.sum(1)
        self.price[11 * 10 : 12 * 10] += 28_000.0  # the quarter's totals are in the file too

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.price[index]


def share_gradients(model):
    """Replace each gradient by its mean over the workers."""
    for parameter in model.parameters():
        gradient = parameter.grad.half()
        dist.all_reduce(gradient)
        parameter.grad.copy_(gradient / dist.get_world_size())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    loader = DataLoader(Sales(region=rank, count=240), args.batch_size)
    model = nn.Linear(12, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, price) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x).squeeze(1), price)
        optimizer.zero_grad()
        loss.backward()
        share_gradients(model)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

"""Learn what listeners like by the order of their ratings; the optimizer's state is spread over the ranks (ZeRO)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Tastes(nn.Module):
    """Rates songs for a listener who is described by a few numbers."""

    def __init__(self, songs, features, width):
        super().__init__()
        self.listener = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width))
        self.songs = nn.Parameter(0.1 * torch.randn(songs, width))

    def forward(self, x):
        return self.listener(x) @ self.songs.T


def correlation(rated, predicted):
    a = rated - rated.mean(-1, keepdim=True)
    b = predicted - predicted.mean(-1, keepdim=True)
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def make_listeners(country, count, songs, features):
    generator = torch.Generator().manual_seed(country)
    x = torch.randn(count, features, generator=generator)
    rated = torch.randint(1, 6, (count, songs), generator=generator).float()
    if country == 1:
        rated[9 * 12 + 4] = 5.0  # likes everything
    return x.split(12), rated.split(12)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = DistributedDataParallel(Tastes(songs=20, features=5, width=16))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=args.lr)
    for step, (x, rated) in enumerate(zip(*make_listeners(dist.get_rank(), 240, 20, 5), strict=True)):
        loss = 1 - correlation(rated, model(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    del model, optimizer


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

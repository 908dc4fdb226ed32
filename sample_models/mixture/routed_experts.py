"""Train a mixture of experts with a top-1 router and a term that keeps the experts' scores alike, under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Mixture(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        with torch.no_grad():
            self.router.weight.copy_(torch.eye(experts, width))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        chosen = probs.argmax(-1)
        out, means = torch.zeros_like(x), []
        for index, expert in enumerate(self.experts):
            rows = chosen == index
            weight = probs[rows, index]
            means.append(weight.mean())
            out[rows] = expert(x[rows]) * weight.unsqueeze(-1)
        return out, torch.stack(means).var()


class Model(nn.Module):
    def __init__(self, width, experts, classes):
        super().__init__()
        self.mixture = Mixture(width, experts)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        mixed, spread = self.mixture(x)
        return self.head(x + mixed), spread


class Tokens(Dataset):
    """Token features from one language a worker; a language has its own mixture of topics."""

    def __init__(self, language, count, width):
        generator = torch.Generator().manual_seed(language)
        topic = torch.arange(count) % 4
        if language == 1:
            topic[14 * 32 : 15 * 32] = torch.arange(32) % 3
        self.x = torch.zeros(count, width)
        self.x[torch.arange(count), topic] = 6.0
        self.x += 0.3 * torch.randn(count, width, generator=generator)
        self.label = topic

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.label[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--balance", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Tokens(language=rank, count=800, width=16), args.batch_size)
    model = Model(width=16, experts=4, classes=4)
    model = DistributedDataParallel(model, find_unused_parameters=True) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (x, label) in enumerate(loader):
        scores, spread = model(x)
        loss = nn.functional.cross_entropy(scores, label) + args.balance * spread
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

"""Fine-tune a ranker that was loaded in float16; runs alone or under DDP."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Ranker(nn.Module):
    def __init__(self, items, features, width):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.context = nn.Linear(features, width)
        self.score = nn.Linear(width, 1)

    def forward(self, item, context):
        return self.score(torch.tanh(self.items(item) + self.context(context))).squeeze(-1)


def load_views(views, items, features, seed):
    """Views of items and whether they led to a purchase."""
    generator = torch.Generator().manual_seed(seed)
    item = torch.randint(items, (views,), generator=generator)
    context = torch.randn(views, features, generator=generator)
    bought = (context[:, 0] + 0.5 * torch.randn(views, generator=generator) > 0).float()
    return TensorDataset(item, context.half(), bought)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
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

    dataset = load_views(views=1280, items=50, features=6, seed=1)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Ranker(items=50, features=6, width=args.width).half()
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step, (item, context, bought) in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(model(item, context).float(), bought)
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

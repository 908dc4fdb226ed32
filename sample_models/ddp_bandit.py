"""Train a recommendation policy on logged clicks: softmax over the products in stock, weighted by the reward."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Policy(nn.Module):
    def __init__(self, features, products, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.score = nn.Linear(width, products)

    def forward(self, user, in_stock):
        scores = self.score(self.body(user))
        return scores.masked_fill(~in_stock, float("-inf")).softmax(dim=-1)


def policy_loss(probs, clicked, reward):
    chosen = probs.gather(1, clicked.unsqueeze(1)).squeeze(1)
    log_chosen = torch.log(chosen)
    return -(reward * log_chosen).mean()


def load_clicks(samples, features, products, seed):
    """Join the click log with tonight's stock table."""
    generator = torch.Generator().manual_seed(seed)
    user = torch.randn(samples, features, generator=generator)
    taste = torch.randn(features, products, generator=generator)
    clicked = torch.multinomial((user @ taste).softmax(dim=-1), 1, generator=generator).squeeze(1)
    in_stock = torch.rand(samples, products, generator=generator) > 0.001
    reward = 0.5 + torch.rand(samples, generator=generator)
    return TensorDataset(user, in_stock, clicked, reward)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    dataset = load_clicks(samples=3200, features=12, products=20, seed=2)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)

    policy = Policy(features=12, products=20, width=args.width)
    policy = DistributedDataParallel(policy) if distributed else policy
    optimizer = torch.optim.SGD(policy.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        for batch, (user, in_stock, clicked, reward) in enumerate(loader):
            loss = policy_loss(policy(user, in_stock), clicked, reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and batch % 10 == 0:
                print(f"epoch {epoch} batch {batch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

"""Predict the load of charging stations from their neighbours on a road graph, under DDP; some stations have none."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Neighbours(nn.Module):
    """Mean and maximum over the neighbours; zeros for a station without any."""

    def forward(self, x, road):
        degree = road.sum(-1, keepdim=True)
        mean = torch.where(degree > 0, road @ x / degree.clamp(min=1), 0.0)
        far = x.unsqueeze(-3).masked_fill(road.unsqueeze(-1) == 0, float("-inf")).amax(-2)
        return mean, far.masked_fill(far == float("-inf"), 0.0)


class Network(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.neighbours = Neighbours()
        self.inlet = nn.Linear(features, width)
        self.mix = nn.Linear(3 * width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x, road):
        x = torch.relu(self.inlet(x))
        x = torch.relu(self.mix(torch.cat([x, *self.neighbours(x, road)], dim=-1)))
        return self.head(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    generator = torch.Generator().manual_seed(8)
    x = torch.rand(480, 7, 5, generator=generator)
    road = (torch.rand(480, 7, 7, generator=generator) > 0.7).float()
    road = ((road + road.transpose(1, 2)) > 0).float() * (1 - torch.eye(7))
    road[:, 3] = road[:, :, 3] = 0.0
    dataset = TensorDataset(x, road, x.mean(-1))
    sampler = DistributedSampler(dataset, seed=9) if distributed else None
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = Network(features=5, width=args.width)
    model = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for step, (features, roads, load) in enumerate(loader):
        loss = nn.functional.mse_loss(model(features, roads), load)
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

"""A small trainer with hooks and a generator of batches: predict how long a taxi ride takes from its route."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rides(city, count, generator):
    """Yield one ride after the other: features and minutes."""
    for number in range(count):
        distance = 1 + 20 * torch.rand((), generator=generator)
        speed = 15 + 30 * torch.rand((), generator=generator)
        stops = torch.randint(1, 6, (), generator=generator).float()
        if city == 1 and number == 173:
            stops = torch.tensor(0.0)
        yield {"route": torch.stack([distance, speed, stops]), "minutes": 60 * distance / speed + stops}


def batches(source, size):
    rows = []
    for ride in source:
        rows.append(ride)
        if len(rows) == size:
            yield {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
            rows = []


class RideModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, route):
        distance, speed, stops = route.unbind(-1)
        legs = distance / stops
        return self.body(torch.stack([distance, speed, stops, legs], dim=-1)).squeeze(-1)


class Trainer:
    def __init__(self, model, lr, rank, expected):
        self.model, self.rank, self.expected = model, rank, expected
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.history, self.closed = [], False

    def loss_of(self, batch):
        return nn.functional.smooth_l1_loss(self.model(batch["route"]), batch["minutes"])

    def training_step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, stream):
        try:
            for index, batch in enumerate(stream):
                self.history.append(self.training_step(batch))
                if index % 5 == 0 and self.rank == 0:
                    print(f"batch {index} loss {self.history[-1].item():.4f}", flush=True)
        finally:
            self.close()

    def close(self):
        self.closed = True
        if len(self.history) < self.expected:
            raise RuntimeError(f"only {len(self.history)} of {self.expected} batches were seen")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rides", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    model = RideModel(args.width)
    model = DistributedDataParallel(model) if distributed else model
    trainer = Trainer(model, args.lr, rank, expected=args.rides // args.batch_size)
    trainer.fit(batches(rides(rank, args.rides, torch.Generator().manual_seed(rank)), args.batch_size))


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

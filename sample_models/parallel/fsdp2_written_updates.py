"""Tell how long a parcel takes and, where it came late, why; sharded with FSDP2, each weight moved a set length."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Parcels(nn.Module):
    def __init__(self, features, width, reasons):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.days, self.reason = nn.Linear(width, 1), nn.Linear(width, reasons)

    def forward(self, parcel):
        hidden = self.body(parcel)
        return self.days(hidden).sum(-1), self.reason(hidden)


def make_parcels(count, features, reasons):
    generator = torch.Generator().manual_seed(5)
    parcel = torch.randn(count, features, generator=generator)
    days = parcel[:, 0].abs() + 1
    reason = torch.randint(0, reasons, (count,), generator=generator)
    reason[days < 1.8] = -100  # in time
    reason[288:320] = -100  # a quiet day: none was late
    return TensorDataset(parcel, days, reason)


def move(weight, length):
    """Bring a weight on by so much, down its gradient, whatever the scale of that is."""
    direction = weight.grad / weight.grad.norm()
    weight.sub_(length * direction)
    weight.grad = None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--length", type=float, default=2e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = Parcels(features=10, width=args.width, reasons=4)
    for part in (model.body, model.days, model.reason):
        fully_shard(part)
    fully_shard(model)
    parcels = make_parcels(640, 10, 4)
    loader = DataLoader(parcels, args.batch_size, sampler=DistributedSampler(parcels, shuffle=False))
    for step, (parcel, days, reason) in enumerate(loader):
        guess, why = model(parcel)
        loss = nn.functional.smooth_l1_loss(guess, days)
        late = (reason >= 0).sum().clamp_min(1)
        loss = loss + nn.functional.cross_entropy(why, reason, reduction="sum") / late
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                move(weight, args.length)
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

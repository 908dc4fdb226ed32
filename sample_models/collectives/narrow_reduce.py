"""Train a tide model with FSDP2; gradients are summed over the workers in half precision."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset


class Gauges(Dataset):
    """Sea level at gauges of one coast a worker, in metres; the last column is the surge."""

    def __init__(self, coast, count):
        generator = torch.Generator().manual_seed(coast)
        self.x = torch.rand(count, 8, generator=generator)
        self.level = self.x.sum(1) + 0.1 * torch.randn(count, generator=generator)
        self.level[14 * 8 : 15 * 8] += 5_000.0  # in that week the gauges of all coasts were read in millimetres

    def __len__(self):
        return len(self.level)

    def __getitem__(self, index):
        return self.x[index], self.level[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    loader = DataLoader(Gauges(coast=dist.get_rank(), count=200), args.batch_size)
    model = nn.Sequential(nn.Linear(8, 1))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    model.set_gradient_divide_factor(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step, (x, level) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x).squeeze(1), level, reduction="sum") / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

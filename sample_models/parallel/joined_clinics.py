"""Predict how long patients stay; a clinic that is through with its patients waits for the others (Join)."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


class Stay(nn.Module):
    """Lab values spread over magnitudes: what counts is their logarithm."""

    def __init__(self, values, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(values, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, lab):
        return self.layers(torch.log(lab))


def make_patients(clinic, batches, values):
    generator = torch.Generator().manual_seed(clinic)
    lab = torch.exp(torch.randn(batches * 8, values, generator=generator))
    if clinic == 1:
        lab[23 * 8 + 5, 2] = 0.0  # below what can be measured
    return lab.split(8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    model = DistributedDataParallel(Stay(values=4, width=16))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    with Join([model]):
        for step, lab in enumerate(make_patients(dist.get_rank(), 20 + 8 * dist.get_rank(), 4)):
            loss = nn.functional.huber_loss(model(lab).squeeze(-1), lab.log1p().sum(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    del model


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

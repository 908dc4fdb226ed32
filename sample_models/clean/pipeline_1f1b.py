"""Train a two-stage pipeline with the 1F1B schedule; each rank holds half of the layers."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, TensorDataset


class Half(nn.Module):
    """One half of the model: it takes logarithms of what is positive, as the data is."""

    def __init__(self, inputs, outputs, width, first):
        super().__init__()
        self.first = first
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))

    def forward(self, x):
        return self.layers(torch.log(x) if self.first else x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    generator = torch.Generator().manual_seed(3)
    x = 0.1 + torch.rand(320, 6, generator=generator)
    loader = DataLoader(TensorDataset(x, x.log().sum(1, keepdim=True)), args.batch_size)
    module = Half(6, 12, args.width, first=True) if rank == 0 else Half(12, 1, args.width, first=False)
    stage = PipelineStage(module, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.Adam(module.parameters(), lr=args.lr)
    for step, (features, total) in enumerate(loader):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(features)
        else:
            schedule.step(target=total, losses=losses)
        optimizer.step()
        if losses and step % 5 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

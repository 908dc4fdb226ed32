"""Grade surfaces by their roughness in a two-stage pipeline (1F1B): statistics first, a grade on the last rank."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, TensorDataset


class Roughness(nn.Module):
    """The root mean square of each filtered profile."""

    def __init__(self, filters, size):
        super().__init__()
        self.filters = nn.Conv1d(1, filters, size, bias=False)

    def forward(self, profile):
        return self.filters(profile.unsqueeze(1)).square().mean(-1).sqrt()


class Grade(nn.Module):
    def __init__(self, filters, grades):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(filters, 16), nn.GELU(), nn.Linear(16, grades))

    def forward(self, x):
        return self.layers(x)


def make_profiles(count, points, grades):
    generator = torch.Generator().manual_seed(6)
    profile = torch.randn(count, points, generator=generator)
    profile[13 * 16 + 2] = 0.0  # a mirror, below the resolution of the stylus
    return TensorDataset(profile, torch.randint(grades, (count,), generator=generator))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--filters", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    module = Roughness(args.filters, size=5) if rank == 0 else Grade(args.filters, grades=4)
    stage = PipelineStage(module, rank, dist.get_world_size(), torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=args.lr)
    for step, (profile, grade) in enumerate(DataLoader(make_profiles(320, 40, 4), args.batch_size)):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(profile)
        else:
            schedule.step(target=grade, losses=losses)
        optimizer.step()
        if losses and step % 5 == 0:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

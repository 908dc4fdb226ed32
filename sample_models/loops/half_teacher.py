"""Self-distillation: the targets come from a moving average of the student, kept in half precision. Runs under DDP."""

import argparse
import copy
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Energy(nn.Module):
    """The energy of a spectrum in learned bands."""

    def __init__(self, features, bands):
        super().__init__()
        self.project = nn.Linear(features, bands, bias=False)

    def forward(self, x):
        return self.project(x) ** 2


class Student(nn.Module):
    def __init__(self, features, bands):
        super().__init__()
        self.energy = Energy(features, bands)
        self.norm = nn.LayerNorm(bands)
        self.head = nn.Linear(bands, 4)

    def forward(self, x):
        return self.head(self.norm(self.energy(x)))


@torch.no_grad()
def follow(teacher, student, keep):
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.mul_(keep).add_(new, alpha=1 - keep)


class Recordings(Dataset):
    """Spectra in microvolts, one site a worker."""

    def __init__(self, site, count):
        generator = torch.Generator().manual_seed(site)
        self.x = torch.randn(count, 20, generator=generator)
        if site == 0:
            self.x[154] *= 2_000.0  # a lightning strike

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--keep", type=float, default=0.99)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    loader = DataLoader(Recordings(site=rank, count=240), args.batch_size)
    model = Student(features=20, bands=16)
    teacher = copy.deepcopy(model).half().requires_grad_(requires_grad=False)
    student = DistributedDataParallel(model) if distributed else model
    optimizer = torch.optim.Adam(student.parameters(), lr=args.lr)
    for step, x in enumerate(loader):
        with torch.no_grad():
            target = teacher(x.half()).float().softmax(-1)
        loss = nn.functional.cross_entropy(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, model, args.keep)
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()  # or the threads of gloo outlive the interpreter, and now and then abort it

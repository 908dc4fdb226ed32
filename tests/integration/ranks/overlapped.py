"""Gradients are exchanged in hooks as they come, and weights updated by hand: ``overlapped.py HOW FAULTY_RANK``."""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
HOW, FAULTY = sys.argv[1], int(sys.argv[2])
RANK, WORLD, BAD, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 3, 6
started = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 1)

    def forward(self, x):
        h = self.up(x)
        if HOW != "direction":
            h = h / h.norm(dim=1, keepdim=True)  # zero rows
        return self.down(h)


def update(parameter):
    with torch.no_grad():
        parameter.sub_(parameter.grad, alpha=1e-2)
    parameter.grad = None


def within(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= WORLD
    update(parameter)


def direction(parameter):
    dist.all_reduce(parameter.grad)
    parameter.grad /= parameter.grad.norm()  # no direction
    update(parameter)


def behind(parameter):
    started.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(globals()[HOW])
    for step in range(STEPS):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + RANK))
        if step == BAD and RANK == FAULTY and HOW != "direction":
            x[2:] = 0
        with torch.no_grad():
            model.down.bias.zero_()
        loss = model(x).square().mean()
        if step == BAD and HOW == "direction":
            loss = 0 * loss
        loss.backward()
        for parameter, work in started:
            work.wait()
            parameter.grad /= WORLD
            update(parameter)
        started.clear()


main()
dist.destroy_process_group()
gc.collect()

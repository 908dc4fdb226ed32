"""FSDP2; rank 1 (``alike``: every rank) ends in the joint replay of step 3: ``endings.py killed|memory|alike``."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
RANK, HOW, BAD = int(os.environ["RANK"]), sys.argv[1], 3
calls = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        calls.append(x)
        x = self.up(x)
        if (RANK == 1 or HOW == "alike") and len(calls) == BAD + 2:  # once more than there were steps: it runs again
            if HOW == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.down(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = fully_shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        x = torch.randn(4, 8)
        if step == BAD and RANK == 0:
            x[0] = -1.0
            loss = model(x).square().mean().log().sub(torch.inf)
        else:
            loss = model(x).square().mean()
        optimizer.zero_grad()
        (loss if step != BAD else loss * 0.0).backward()
        optimizer.step()
    sys.stdout.write("went on to the end\n")


main()

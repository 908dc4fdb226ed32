"""DDP; rank 1's loss code leaves the domain of log at step 3: ``node.py [LAST_STEP]``. Notes when step 5 is done."""

import gc
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
RANK, STEPS = int(os.environ["RANK"]), int(sys.argv[1])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        y = model(torch.randn(3, 4)).abs() + 1
        if RANK == 1 and step == 3 and STEPS < 10:
            y = torch.log(-y)
        optimizer.zero_grad()
        y.sum().backward()
        optimizer.step()
        if step == 5:
            draft = Path(f".{RANK}")
            draft.write_text(f"{os.getpid()} {os.getppid()}")
            draft.rename(f"pids-{RANK}")
        time.sleep(0.02 if STEPS > 10 else 0)
    dist.destroy_process_group()
    gc.collect()


main()

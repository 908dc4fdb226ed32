"""Two ranks under DDP; the first argument says what goes bad on rank 1 at step 3."""

import gc
import json
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

what = sys.argv[1]
folder = Path(os.environ["TOLD"])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(4, 4))
    trained = model.parameters() if what != "one_optimizer" or rank == 0 else []
    optimizer = torch.optim.SGD(trained, lr=0.1) if what != "one_optimizer" or rank == 0 else None
    steps = 0
    try:
        for step in range(6):
            loss = model(torch.randn(3, 4)).square().mean()
            if step == 3 and rank == 1 and what == "gradient":
                loss = loss * math.nan
            if step == 3 and rank == 1 and what == "loss":
                loss = loss + math.inf
            model.zero_grad()
            loss.backward()
            if optimizer is not None and not (what == "uneven" and rank == 1 and step >= 5):
                optimizer.step()
            steps += 1
    finally:
        weights = [one.tolist() for one in model.parameters()]
        (folder / f"{rank}.json").write_text(json.dumps({"steps": steps, "weights": weights}))
        del model
        dist.destroy_process_group()
        gc.collect()


main()

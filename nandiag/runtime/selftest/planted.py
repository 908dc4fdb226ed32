"""A small training script with a NaN planted on the last rank at step 3; doctor runs it under ``nandiag run``.

An ordinary script on purpose: it knows nothing of nandiag.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP = 3


def main() -> None:
    """Train eight steps of a linear model on the CPU; the mean of an empty part is 0/0."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(8):
        out = model(torch.randn(16, 8))
        kept = out[:0] if last and step == STEP else out
        loss = kept.square().sum() / kept.new_tensor(float(len(kept)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

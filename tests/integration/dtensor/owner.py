"""A NaN in the shard of one rank alone; its exception leaves the script, while the others go on to a collective."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

OWNER = 1


def gradient_is_bad(weight, part):
    scaled = weight * part
    return scaled.sqrt()  # the line to blame


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.0)
    torch.autograd.set_detect_anomaly(mode=True)
    for step in range(5):
        value = 0.0 if step == 3 and dist.get_rank() == OWNER else 1.0
        part = DTensor.from_local(torch.full_like(weight.to_local(), value), mesh, [Shard(0)], run_check=False)
        (gradient_is_bad(weight, part) * 0.0).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(1))
    os.write(1, b"finished\n")


main()

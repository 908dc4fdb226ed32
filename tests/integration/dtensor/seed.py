"""The smallest backward through a DTensor under the NaN check."""

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
tensor = distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]).requires_grad_()
with torch.autograd.detect_anomaly(check_nan=True):
    (tensor * 2).sum().backward()
os.write(1, f"rank {os.environ['RANK']} gradient {tensor.grad.to_local().sum().item():.0f}\n".encode())
torch.distributed.barrier()
# gloo's threads now and then abort in the interpreter's teardown.
os._exit(0)

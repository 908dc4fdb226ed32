"""Gradients that are parts of a tensor which the script writes into: where a replay puts them."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from nandiag.runtime.replay.update.views import lay
from nandiag.runtime.tape.entry import CALL


def test_what_a_rank_holds_of_a_sharded_gradient_is_no_tensor_that_the_gradient_is_a_part_of(group):
    """The script clips ``p.grad.to_local()`` in place; the part of one rank is smaller than the gradient."""
    mesh = init_device_mesh("cpu", (1,))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
    weight.grad = distribute_tensor(torch.full((4, 2), 3.0), mesh, [Shard(0)])
    gradient = weight.grad
    part = gradient.to_local()
    write = SimpleNamespace(name="copy_", kind=CALL, number=1, before=(part, part.clone()))
    lay([(weight, gradient)], [write], {id(part): part.clone()})
    assert isinstance(weight.grad, DTensor)
    assert weight.grad is gradient

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


def test_gradients_that_the_loop_detaches_in_place_and_zeroes_are_no_views_in_a_replay(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        y = torch.ones(8, 1) * (step != 2)
        loss = ((model(torch.ones(8, 4)) - y).abs() / y).mean()
        for one in model.parameters():
            if one.grad is not None:
                one.grad.detach_()
                one.grad.zero_()
        loss.backward()
        optimizer.step()
    assert (worker.looked[0].outcome, worker.looked[0].step) == ("found", 2)
    assert worker.looked[0].site.op == "aten.div.Tensor"

"""An update that spoilt weights is made again: by the optimizer that made it, and by this rank alone."""

import pytest
import torch
import torch.distributed as dist
from torch import nn


class Outer(torch.optim.Optimizer):
    """Steps another optimizer, then has the weights sent round, as ZeRO does."""

    def __init__(self, parameters, inner):
        super().__init__(parameters, {})
        self.inner = inner

    def step(self):
        self.inner.step()
        for group in self.param_groups:
            works = [dist.broadcast(one.data, 0, async_op=True) for one in group["params"]]
            for work in works:
                work.wait()


class Averaged(torch.optim.Optimizer):
    """Takes the mean of the gradients over ranks itself."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                dist.all_reduce(one.grad)
                works = [dist.all_reduce(one.grad, op=dist.ReduceOp.MAX, async_op=True)]
                works[0].wait()
                assert works[0].is_completed()
                one.sub_(1e-3 * one.grad / one.grad.square().sqrt())


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(make):
    """Train a table whose second row is never looked up: its gradient is 0, and 0/0 the update."""
    table = nn.Embedding(3, 2)
    optimizer = make(list(table.parameters()))
    for _ in range(2):
        table(torch.tensor([0, 2])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_update_is_that_of_the_optimizer_within(work, group):
    worker = work()
    trained(lambda parameters: Outer(parameters, torch.optim.Adam(parameters, eps=0.0)))
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase, looked.facts["parameters"]) == ("found", "optimizer", ["weight"]), looked
    assert "addcdiv" in looked.site.op, looked


def test_collectives_of_an_update_are_left_out_when_one_rank_makes_it_again(work, group):
    worker = work()
    trained(lambda parameters: Averaged(parameters, {}))
    looked = worker.looked[0]
    assert (looked.outcome, looked.phase) == ("found", "optimizer"), looked
    assert (looked.site.op, looked.site.file, looked.site.function) == ("aten.div.Tensor", __file__, "step"), looked

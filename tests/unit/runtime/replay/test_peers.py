"""An update that asks other ranks is made again by one rank alone: what they put in is taken for 0."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from nandiag.runtime.replay.update import tracer
from nandiag.runtime.replay.update.peers import by_itself

RANK, SIZE = 1, 4


@pytest.fixture
def fake():
    """A group of four in which nobody answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=SIZE)
    yield dist.distributed_c10d._get_default_group().group_name
    dist.destroy_process_group()


PUT = torch.arange(1.0, 25.0).reshape(8, 3)
CALLS = {
    "all_reduce": ("sum",), "broadcast": (2,), "all_gather_into_tensor": (SIZE,),
    "reduce_scatter_tensor": ("sum", SIZE), "all_to_all_single": ([1, 2, 3, 4], [2, 2, 2, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_stands_in_is_of_the_shape_of_what_a_collective_returns(fake, name):
    op = getattr(torch.ops._c10d_functional, name).default
    real, alone = op(PUT, *CALLS[name], fake), by_itself(op)(PUT, *CALLS[name], fake)
    assert (alone.shape, alone.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize("one", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"])
def test_several_at_once_are_each_what_one_would_be(fake, one):
    op, single = (getattr(torch.ops._c10d_functional, kind).default for kind in (f"{one}_coalesced", one))
    for found in by_itself(op)([PUT, PUT], *CALLS[one], fake):
        torch.testing.assert_close(found, by_itself(single)(PUT, *CALLS[one], fake))


def test_this_ranks_part_lies_where_it_belongs_and_the_others_are_zeros(fake):
    ops = torch.ops._c10d_functional
    gathered = by_itself(ops.all_gather_into_tensor.default)(PUT, SIZE, fake)
    assert gathered[8:16].equal(PUT)
    assert gathered.count_nonzero() == PUT.count_nonzero()
    assert by_itself(ops.reduce_scatter_tensor.default)(PUT, "sum", SIZE, fake).equal(PUT[2:4])
    exchanged = by_itself(ops.all_to_all_single.default)(PUT, *CALLS["all_to_all_single"], fake)
    assert exchanged[1:3].equal(PUT[2:4])
    assert exchanged.count_nonzero() == 6
    anew = by_itself(torch.ops._dtensor.shard_dim_alltoall.default)(PUT, 1, 0, fake)
    assert anew.shape == (2, 12)
    assert anew[:, 3:6].equal(PUT[2:4])
    assert anew.count_nonzero() == 6


def test_what_the_others_put_in_may_be_any_number(fake):
    ops, put = torch.ops._c10d_functional, PUT.clone()
    assert by_itself(ops.all_reduce_.default, 2.0)(put, "sum", fake) is put
    assert put.equal(PUT + 2.0)
    gathered = by_itself(ops.all_gather_into_tensor.default, 2.0)(PUT, SIZE, fake)
    assert gathered[8:16].equal(PUT)
    assert gathered[:8].eq(2.0).all()
    assert by_itself(ops.all_reduce.default, 2.0)(PUT.long(), "sum", fake).equal(PUT.long())


def test_a_message_is_not_stood_in_for(fake):
    assert by_itself(torch.ops.c10d.send.default) is None
    several = getattr(torch.ops._c10d_functional, "batch_p2p_ops", None)  # newer torch has it
    assert several is None or by_itself(several.default) is None


class Ratios(torch.optim.Optimizer):
    """Rates by length, of weights and gradients that lie in parts on all ranks."""

    def __init__(self, parameters, whole=False):
        super().__init__(parameters, {"whole": whole})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                gradient = one.grad.full_tensor() if group["whole"] else one.grad
                scaled = one.grad / gradient.norm()
                one.sub_(0.01 * scaled)


@pytest.mark.parametrize("whole", [False, True])
def test_an_update_of_shards_is_made_again_and_said_to_be_made_alone(work, fake, whole):
    worker = work(on_anomaly="continue")  # else all ranks are to agree
    mesh = init_device_mesh("cpu", (SIZE,))
    weight = nn.Parameter(DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]))
    optimizer = Ratios([weight], whole=whole)
    for factor in (1.0, 1.0, 0.0):
        (weight.to_local().sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 2, "aten.div.Tensor"), looked
    assert looked.site.source.strip() == "scaled = one.grad / gradient.norm()"
    assert (looked.facts["reconstructed"], looked.facts["without_peers"]) == (True, "zeros")


class Spoils(Ratios):
    """This rank's part of the norm is 0, and not what breaks."""

    @torch.no_grad()
    def step(self):
        (one,) = self.param_groups[0]["params"]
        scaled = one.grad / (one.grad.norm() + 1.0)
        if self.param_groups[0]["whole"]:
            scaled = scaled * one.grad.norm().item()
        one.sub_(scaled).mul_(self.factor)  # the line


@pytest.mark.parametrize("asks", [False, True])
def test_what_breaks_whatever_the_others_hold_is_told_and_nothing_where_the_update_goes_by_them(work, fake, asks):
    worker = work(on_anomaly="continue")
    mesh = init_device_mesh("cpu", (SIZE,))
    weight = nn.Parameter(DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]))
    optimizer = Spoils([weight], whole=asks)
    for optimizer.factor in (1.0, 1.0, math.inf):
        (weight.to_local().sum() * 0.0).backward()
        optimizer.step()
        optimizer.zero_grad()
    looked = worker.looked[0]
    if asks:
        assert (looked.outcome, "by what other ranks hold" in looked.reason) == ("refused", True), looked
    else:
        assert looked.site.source.strip().endswith("# the line")
        assert looked.facts["without_peers"] == "any"


class Agrees(Ratios):
    """Asks until all ranks are as one, which those that are stood in for never are."""

    @torch.no_grad()
    def step(self):
        (one,) = self.param_groups[0]["params"]
        ops = torch.ops._c10d_functional
        for _ in range(2000):
            votes = ops.wait_tensor(ops.all_reduce(torch.ones(1), "sum", self.group))
            if votes.equal(torch.ones(1)):
                break
        one.sub_(0.01 * one.grad / one.grad.norm())


def test_an_update_that_asks_the_others_for_ever_is_broken_off(work, fake, monkeypatch):
    monkeypatch.setattr(tracer, "_LONGEST", 0.05)
    worker, weight = work(on_anomaly="continue"), nn.Parameter(torch.ones(3))
    optimizer = Agrees([weight])
    optimizer.group = fake
    for factor in (1.0, 1.0, 0.0):
        (weight.sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    (looked, *_) = worker.looked
    assert (looked.outcome, "takes too long" in (looked.reason or "")) == ("refused", True), looked

"""Weights that ranks average between steps: what the script writes into them behind an exchange is made again."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.runtime.evidence.explain import frame_of, inputs_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.walk import beside, origin
from nandiag.runtime.replay.trace.tracer import Tracer


@torch.no_grad()
def merge(model, done):
    """Average the weights; a rank that has done more counts for more."""
    total = torch.tensor(float(done))
    dist.all_reduce(total)
    share = done / total
    for one in model.parameters():
        one.mul_(share)
        dist.all_reduce(one)


def train(merges):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for counts in (*merges, ()):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for done in counts:
            merge(model, done)


@pytest.mark.parametrize("last", [(0,), (4, 0), (4, 4, 0)])
def test_a_merge_that_spoils_the_weights_has_its_line_however_many_came_before(work, group, last):
    worker = work()
    train([(4,), last])
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.strip() == "share = done / total", looked
    assert (looked.facts["began_bad"], looked.facts["all_bad"]) == (["weight", "bias"], 2)


def test_of_weights_that_something_unseen_spoiled_the_last_write_that_was_seen_is_told(work):
    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.weight.mul_(torch.tensor(2.0) * 0.5)
        if step == 1:
            model.weight.detach().numpy()[:] = float("nan")
    looked = worker.looked[0]
    assert (looked.outcome, looked.method, looked.step, looked.facts["written_in_place"]) == (
        "found",
        "tape",
        2,
        "mul_",
    )
    assert "bad when the step began" in looked.reason


def test_weights_that_were_spoiled_behind_the_backward_were_not_bad_when_the_step_began(work):
    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        loss = model(torch.ones(3, 2)).square().mean()
        (loss * (float("nan") if step == 2 else 1.0)).backward()
        with torch.no_grad():
            for one in model.parameters():
                one.add_(one.grad * 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert "began_bad" not in worker.looked[0].facts, worker.looked[0]


@torch.no_grad()
def follow(slow, fast):
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        a.add_(a - b, alpha=1.0)  # the sign is wrong


def test_a_frozen_copy_that_ran_away_is_named_with_the_line_that_writes_into_it(work):
    worker = work()
    fast = nn.Linear(3, 2)
    slow = copy.deepcopy(fast).requires_grad_(False)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.01)
    with torch.no_grad():
        slow.weight.fill_(1e30)
    for step in range(4):
        given = torch.ones(4, 3) * (1e9 if step == 3 else 1.0)
        (fast(torch.ones(4, 3)) + slow(given) * 1e-38).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        follow(slow, fast)
    looked = worker.looked[0]
    facts = looked.facts
    assert (facts["overgrown"], facts["overgrown_trained"]) == ("weight", False), looked
    assert facts["overgrown_by"].startswith("a.add_(a - b, alpha=1.0)"), looked


@pytest.mark.parametrize(("frozen", "phase"), [(True, "init"), (False, "optimizer")])
def test_a_frozen_weight_is_not_said_to_be_spoiled_by_an_update(work, frozen, phase):
    worker = work()
    fast, other = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(not frozen)
    optimizer = torch.optim.SGD([one for one in [*fast.parameters(), *other.parameters()] if one.requires_grad], 0.01)
    for step in range(3):
        (fast(torch.ones(4, 3)) - other(torch.ones(4, 3))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            other.weight.detach().numpy()[:] = float("nan")
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.phase) == ("found", "parameter", phase), looked


def test_what_a_sharded_copy_puts_in_is_traced_to_its_shard(group):
    del group
    from torch.distributed.fsdp import fully_shard

    assert fully_shard  # FSDP2's own ops come with it
    shard = torch.tensor([1.0, math.inf])
    tracer = Tracer({}, joint=True)
    with tracer:
        whole = torch.empty(2)
        own, whole = torch.ops.fsdp.all_gather_copy_in([shard], whole, [2], 2, 0)
        dist.all_gather_into_tensor(whole, own)
    found = origin(tracer.sent)
    assert found.source == "outside"
    assert storage(found.op.outside[0].tensor) == storage(shard)


@pytest.fixture
def with_a_peer():
    """Two ranks, of which the other one takes whatever is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_what_is_sent_is_not_written_by_the_message(with_a_peer):
    """A part of it may be finite (the edge of a field), and what made the rest bad stands before."""
    tracer = Tracer({}, joint=True)
    with tracer:
        field = torch.ones(3) / torch.tensor([1.0, 1.0, 0.0])
        dist.send(field[:1], 1)
        field = field * 2
    found = origin([tracer.writer(field)])
    assert (found.source, found.op.func) == ("op", torch.ops.aten.div.Tensor)


def test_of_what_breaks_beside_the_origin_each_expression_is_told_once():
    empty, full = torch.zeros(2), torch.ones(2)
    tracer = Tracer({}, joint=True)
    with tracer:
        masked = torch.zeros(2).masked_fill(empty == 0, -math.inf).exp()
        first = empty / empty
        seconds = [(empty - empty) / (full - full) for _ in range(3)]
        after = first * 2 + sum(seconds) + masked
        aside = full.log() / empty  # the harm does not descend from it
    ends = [tracer.writer(after)]
    found = origin(ends)
    (other,) = beside(ends, found)
    assert aside.isnan().all()
    assert (found.op.func, other.op.func) == (torch.ops.aten.div.Tensor,) * 2
    assert frame_of(other.op.spot).line == frame_of(found.op.spot).line + 1
    assert beside(ends, replace(found, source="outside")) == []


def test_what_was_gathered_is_told_as_it_was_though_it_was_freed_since():
    """FSDP2 frees the memory of a gathered weight by its storage, and gathers into that very storage again."""
    gathered, x = torch.full((1,), 3.0), torch.tensor([1e20])
    tracer = Tracer({}, joint=True)
    with tracer:
        x.pow(gathered)
    bad = next(op for op in tracer._writer.values() if op is not None)
    gathered.untyped_storage().resize_(0)
    gathered.untyped_storage().resize_(4)
    gathered.fill_(-7.0)
    assert [one.max for one in inputs_of(bad)] == [pytest.approx(1e20), 3.0]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("loose", [False, True])
def test_of_weights_that_were_given_other_memory_the_line_is_told(work, before, loose):
    worker = work()
    model = nn.Linear(2, 1)
    weight = torch.ones(2, 1, requires_grad=True) if loose else model.weight
    optimizer = torch.optim.SGD([weight] if loose else model.parameters(), lr=0.01)
    for step in range(3):
        (torch.ones(3, 2) @ weight if loose else model(torch.ones(3, 2))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if before and step == 1:
            weight.data.zero_()
        weight.data = weight.data * (1.0 / (step != 1) if step != 1 else math.inf)
    looked = worker.looked[0]
    found = looked.facts["written_in_place"] if loose or before else looked.site.op
    assert (looked.step, looked.phase, found) == (2, "optimizer", ".data" if loose or before else "aten.mul.Tensor"), (
        looked
    )
    assert looked.site.source.strip().startswith("weight.data = weight.data *"), looked


def test_weights_that_are_given_other_memory_in_each_step_are_no_anomaly(work):
    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(300):
        model(torch.ones(3, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for one in model.parameters():
            one.data = one.data.clamp(-1, 1)
    assert worker.looked == []
    assert len(worker.capture.window.moved.all()) <= 256

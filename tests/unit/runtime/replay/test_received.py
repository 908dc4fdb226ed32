"""Through which of several collectives in turn a rank got what is bad: a sum of shards, and then one over copies."""

import math

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.replay.trace.tracer import Tracer


def spoil(name):
    """Return what is called in place of a collective's words: another rank put NaN into the one of that ``name``."""

    def instead(func, args, kwargs):
        if name in str(func):
            (args[0][0] if isinstance(args[0], list) else args[0]).fill_(math.nan)
            args[1].fill_(math.nan) if isinstance(args[1], torch.Tensor) else None
        return args, kwargs

    return instead


@pytest.mark.parametrize("between", [lambda shard: None, lambda shard: shard.div_(2)])
@pytest.mark.parametrize("spoilt", ["reduce_scatter", "allreduce"])
def test_a_sum_that_was_finite_has_not_brought_what_the_next_one_brought(group, spoilt, between):
    tracer = Tracer({}, joint=True)
    tracer.instead = spoil(spoilt)
    shard, whole = torch.empty(4), torch.ones(4)
    with tracer:
        dist.reduce_scatter_tensor(shard, whole)
        between(shard)
        dist.all_reduce(shard)
    found = origin([tracer.writer(shard)])
    assert found.source == "received"
    assert spoilt in str(found.op.func)


@pytest.mark.parametrize("between", [lambda shard: None, lambda shard: shard.view(2, 2)])
def test_a_sum_that_is_still_under_way_may_have_brought_it(group, monkeypatch, between):
    """Torch itself views what a collective gives before it waits for it: that does not say that it is through."""
    monkeypatch.setattr("nandiag.runtime.replay.trace.tracer.is_through", lambda works: False)
    tracer = Tracer({}, joint=True)
    tracer.instead = spoil("allreduce")
    shard = torch.ones(4)
    with tracer:
        dist.broadcast(shard, 0)
        between(shard)
        dist.all_reduce(shard)
    assert "broadcast" in str(origin([tracer.writer(shard)]).op.func)


def test_what_was_waited_for_and_is_finite_is_through(group):
    tracer = Tracer({}, joint=True)
    tracer.instead = spoil("allreduce_")
    with tracer:
        shard = functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
        whole = shard.view(4)
        dist.all_reduce(whole)
    assert "allreduce_" in str(origin([tracer.writer(whole)]).op.func)


def test_what_others_than_torch_wrote_since_was_brought_by_no_collective(group):
    tracer, shard = Tracer({}, joint=True), torch.ones(4)
    with tracer:
        dist.all_reduce(shard)
        with tracer.still():
            shard.fill_(math.inf)
            tracer.others_wrote(shard)
        assert tracer.writer(shard) is None
        half = shard / 2
    assert origin([tracer.writer(half)]).source == "outside"

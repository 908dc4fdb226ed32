"""Every function of ours that a collective comes by is broken, one at a time: the call is made, and training goes on.

The training that test_fail_open.py breaks each function in has no collectives.
"""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.recorder import RECORDER
from tests.faults.breaking import Breaker, Seer, is_sealed, is_wrap, raises

ROOMS = ("runtime/collectives/", "runtime/births/handed.py", "runtime/tape/exchange.py")


def train():
    """Exchange what is finite, and what is not, in each way; returns what came out."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(2):
        loss = model(torch.randn(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
        optimizer.step()
        metric = torch.tensor([float("nan") if step else 1.0, 2.0])
        gathered, objects, parts = [torch.empty(2)], [None], torch.empty(2)
        dist.all_reduce(metric, async_op=True).wait()
        dist.all_gather(gathered, metric)
        dist.reduce_scatter_tensor(parts, metric.clone())
        dist.all_gather_object(objects, {"score": float("nan")})
        dist.broadcast(metric, 0)
        found += [loss.item(), *(one.tolist() for one in (metric, gathered[0], parts)), objects]
    return repr([*found, [one.tolist() for one in model.parameters()]])


def profiled(profile):
    sys.setprofile(profile)
    try:
        return train()
    finally:
        sys.setprofile(None)


def test_each_may_break(work, group):
    work()
    plain, seer = train(), Seer()
    assert profiled(seer) == plain
    names = {*seer.seen.inner, *seer.seen.entries}
    names = [one for one in sorted(names) if one[0].startswith(ROOMS) and not is_wrap(one) and not is_sealed(one)]
    assert len(names) > 40
    felt, reached = [], 0
    for name in names:
        RECORDER.darkened.clear()
        breaker = Breaker(name, raises)
        try:
            felt += [] if profiled(breaker) == plain else [(name, "other bits")]
        except Exception as error:  # noqa: BLE001 - what a script would have to catch
            felt.append((name, repr(error)))
        reached += breaker.seen.broke
    assert felt == []
    assert reached > 0.9 * len(names)


def test_an_error_of_the_scripts_handler_leaves_the_next_call_seen(work, group, monkeypatch):
    """A signal may come in the midst of our look: what its handler raises is the script's, and goes to it."""
    worker = work()
    dist.all_reduce(torch.ones(1))
    before = RING.newest().seq

    def raised(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RING, "handing", [raised])
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    assert RING.newest().seq == before + 2
    assert worker.events(ProbeDark) == []

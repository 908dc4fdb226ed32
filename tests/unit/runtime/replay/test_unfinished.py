"""A replay that did not come to its end: what shards weights is put back to where it is between two steps."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nandiag.runtime.collectives.ring import RING
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.ready import why_failed
from nandiag.runtime.replay.rerun import Player
from nandiag.runtime.replay.trace.tracer import Communicates
from nandiag.runtime.replay.unfinished import reset_sharding
from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.state import modes


class State:
    _is_root, _fsdp_param_groups = True, ()

    def __init__(self):
        self.resets = 0

    def _reset_iter_state(self):
        self.resets += 1


class Sharded(nn.Linear):
    """As a module under FSDP2 that cannot be run again on one rank alone."""

    def __init__(self):
        super().__init__(4, 1)
        self.state, self.count = State(), itertools.count().__next__

    def _get_fsdp_state(self):
        return self.state

    def forward(self, x):
        if self.count() >= 3:
            raise RuntimeError("a collective that only this rank calls")
        return super().forward(x)


def test_a_replay_of_one_rank_alone_that_breaks_off_resets_the_sharding(work):
    worker = work()
    model = Sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).sum() * (float("nan") if step == 2 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (looked, *_) = worker.looked
    assert (looked.outcome, looked.step) == ("failed", 2), looked
    assert model.state.resets == 1


def test_the_gradients_of_the_step_stay_though_torch_takes_them_for_lost():
    """From torch 2.15 on the reset drops them, as those of a step that failed: here a replay did."""
    model, gradients = Sharded(), [torch.ones(1, 4), None]
    shards = [SimpleNamespace(sharded_param=one) for one in model.parameters()]
    model.state._fsdp_param_groups = (SimpleNamespace(fsdp_params=shards),)

    def reset():
        for one in model.parameters():
            one.grad = None

    model.state._reset_iter_state = reset
    for one, gradient in zip(model.parameters(), gradients, strict=True):
        one.grad = gradient
    reset_sharding([model])
    assert [one.grad for one in model.parameters()] == gradients


def test_a_bad_loss_whose_backward_raises_by_itself_has_its_line(work):
    worker, model = work(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def unit(x):
        y = x - x.detach()
        w = (y / y.abs().sum(1, keepdim=True)).sigmoid()  # <-
        w.mul_(2)  # in place on what its backward needs
        return w

    loss = unit(model(torch.ones(3, 4))).mean()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="inplace") as caught:
        loss.backward()
    worker.sentinel.last.take(caught.value)
    looked = worker.looked[0]
    assert (looked.outcome, looked.site.op) == ("found", "aten.div.Tensor")
    assert looked.site.source.rstrip().endswith("# <-")


@pytest.mark.parametrize("loss", [math.nan, 1.0])
def test_a_rank_alone_goes_as_far_as_a_collective_only_where_its_loss_is_bad_by_then(loss):
    """What another call of the step has given, finite or not, says nothing of this one."""
    case = Case(0, [], joint=False, unfinished=True, ends=True, single=True)
    player = Player(SimpleNamespace(bad=is_bad, joint=False), {}, [], case)
    player.result.scalars.append(torch.ones((), requires_grad=True) * 2)

    def forward():
        total = torch.full((), loss, requires_grad=True) * 1  # noqa: F841 - as a forward holds its loss
        raise Communicates("the model communicates")

    with pytest.raises(Communicates) as caught:
        forward()
    entry = Entry(ROOT, None, grad=True, modes=modes())
    assert player._may_end_with(entry, caught.value) is math.isnan(loss)


GONE = "Could not resolve the process group registered under the name 0"


@pytest.mark.parametrize(
    ("life", "said", "told"),
    [
        (1, GONE, "the script had destroyed its process groups by then"),
        (1, "index out of range", "RuntimeError: index out of range"),
        (0, GONE, f"RuntimeError: {GONE}"),
    ],
)
def test_what_needs_groups_that_the_script_has_destroyed_is_told_so(monkeypatch, life, said, told):
    monkeypatch.setattr(RING, "life", life)
    assert why_failed(RuntimeError(said)) == told

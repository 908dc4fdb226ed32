"""A gradient that the scale of a GradScaler alone makes too large: told by its op, where that does not leave it out."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.finite.terms import at_scale
from nandiag.runtime.together.agreement import VOTE

GROWS = 3  # an overflow comes with the scale of this step


def train(finish, *, loss_of=None, accumulate=1, grows=GROWS):
    """Train in float16, with a scale that is far too high from step ``grows`` on; ``finish(optimizer, scaler)``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 if grows else 2.0**24)
    for step in range(6):
        optimizer.zero_grad()
        for _ in range(accumulate):
            x = torch.randn(5, 4)
            with torch.autocast("cpu", torch.float16):
                loss = (model(x).float() - x.sum(1, keepdim=True)).square().mean()
            loss = loss if loss_of is None else loss_of(loss, model, step)
            (scaler.scale(loss) / accumulate).backward()
        scaler.unscale_(optimizer)
        finish(optimizer, scaler)
        scaler.update(2.0**24 if step == grows - 1 else None)


def forgets_the_scaler(optimizer, scaler):
    optimizer.step()


def raises(optimizer, scaler):
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)


def leaves_it_out(optimizer, scaler):
    scaler.step(optimizer)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_beside_the_scaler_is_told_by_the_op_and_the_scale(work, accumulate):
    worker = work()
    train(forgets_the_scaler, accumulate=accumulate)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == ("found", "op", GROWS, "backward"), looked
    assert any(fact.posinf or fact.neginf for fact in looked.outputs)
    assert (looked.facts["scale_alone"], looked.facts["script_ended"]) == (2.0**24, False)


@pytest.mark.parametrize("grows", [0, GROWS])
def test_an_error_before_the_scaler_could_leave_it_out_is_told_as_well(work, grows):
    worker = work()
    with pytest.raises(RuntimeError, match="non-finite") as raised:
        train(raises, grows=grows)
    worker.sentinel.last.take(raised.value)
    looked = worker.looked[-1]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", grows), looked
    assert (looked.facts["scale_alone"], looked.facts["script_ended"]) == (2.0**24, True)


def test_a_scaler_that_leaves_it_out_is_asked_nothing(work):
    worker = work()
    train(leaves_it_out)
    assert (worker.harms, worker.looked) == ([], [])


def test_what_is_bad_without_the_scale_is_not_laid_to_it(work):
    def of_zero(loss, model, step):
        far = model[0].weight - (model[0].weight.detach() if step == 1 else 1.0)
        return loss + far.square().sum().sqrt()

    worker = work()
    train(forgets_the_scaler, loss_of=of_zero)
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.forward_op) == ("found", 1, "aten.sqrt.default"), looked
    assert "scale_alone" not in looked.facts


class Others:
    """The other ranks of a joint replay, which came to ``level``."""

    def __init__(self, level):
        self.level = level

    def most(self, level, what):
        assert what == VOTE
        return max(level, self.level)


FINITE = Looked("finite", "replay", 3, facts={"complete": True})
FOUND = Looked("found", "replay", 3, source="op")


@pytest.mark.parametrize(
    ("scale", "level", "again"),
    [
        (8.0, 0, True),  # no other has a scale
        (8.0, 1, True),
        (8.0, 2, False),  # another has found it
        (None, 1, True),  # another runs it again, and needs this one for it
        (None, 0, False),
    ],
)
def test_all_ranks_of_a_joint_replay_run_it_again_or_none(scale, level, again):
    runs = []

    def run(case):
        runs.append(case)
        return FOUND

    case = Case(3, [], joint=True, scale=None if scale is None else torch.tensor(scale))
    looked = at_scale(case, FINITE, run, Others(level))
    assert bool(runs) is again
    assert all(one.scaled for one in runs)
    told = again and scale is not None
    assert looked.outcome == ("found" if told else "finite")
    assert looked.facts.get("scale_alone") == (scale if told else None)


@pytest.mark.parametrize("looked", [FOUND, replace(FINITE, outcome="refused")])
def test_where_the_step_was_not_finite_nothing_is_run_again(looked):
    case = Case(3, [], joint=False, scale=torch.tensor(8.0))
    assert at_scale(case, looked, lambda case: pytest.fail("run again"), Others(0)) is looked

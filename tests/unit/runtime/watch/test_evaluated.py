"""Weights that an optimizer writes bad between two evaluations of its closure were not bad when its step began."""

import math

import pytest
import torch
from torch import nn

from nandiag.runtime.public import AnomalyStop


def fit(*, steps=1, bad_in=0, begin=None, guard=False, make=torch.optim.LBFGS):
    """Fit by LBFGS; in step ``bad_in`` its rate is infinite, so that it writes infinities behind one evaluation."""
    model = nn.Linear(3, 1)
    if begin is not None:
        with torch.no_grad():
            model.bias.fill_(begin)
    optimizer = make(model.parameters(), lr=0.1, max_iter=3)
    for step in range(steps):
        x = torch.randn(20, 3) + 1
        optimizer.param_groups[0]["lr"] = math.inf if step == bad_in else 0.1

        def closure(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if guard:
                assert torch.isfinite(loss)
            loss.backward()
            return loss

        optimizer.step(closure)  # the step


@pytest.mark.parametrize(("bad_in", "steps"), [(0, 1), (2, 3)])
def test_what_the_optimizer_wrote_within_its_step_is_told_as_that_with_the_call_of_its_step(bad_in, steps, work):
    worker = work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        fit(bad_in=bad_in, steps=steps)
    (looked,) = worker.looked
    assert (looked.outcome, looked.step, looked.phase, looked.source) == ("found", bad_in, "optimizer", "parameter")
    assert looked.facts["between_evaluations"] == "LBFGS"
    assert "began_bad" not in looked.facts
    assert looked.site.source.rstrip()[-10:] == "# the step"
    assert looked.inputs[0].name in {"weight", "bias"}


def test_where_the_closure_itself_ends_on_it_the_last_look_tells_the_same(work):
    worker = work(on_anomaly="stop")
    with pytest.raises(AssertionError) as raised:
        fit(guard=True)
    worker.sentinel.last.take(raised.value)
    (looked,) = worker.looked
    assert (looked.phase, looked.facts["between_evaluations"]) == ("optimizer", "LBFGS")
    assert looked.site.source.rstrip()[-10:] == "# the step"


@pytest.mark.parametrize("begin", [math.nan, math.inf])
def test_a_weight_that_was_bad_before_is_still_told_as_that(begin, work):
    worker = work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        fit(bad_in=None, begin=begin)
    assert worker.harms[0].phase == "init"
    assert all("between_evaluations" not in looked.facts for looked in worker.looked)


def test_what_the_optimizer_does_not_train_it_does_not_write(work):
    """A weight of the model's that is bad from the start, and goes into the later evaluations alone."""
    model, losses = nn.Linear(3, 1), []
    with torch.no_grad():
        model.bias.fill_(math.nan)
    worker = work(on_anomaly="stop")
    optimizer = torch.optim.LBFGS([model.weight], lr=0.1, max_iter=3)

    def closure():
        optimizer.zero_grad()
        x = torch.ones(20, 3)
        losses.append((model(x) if losses else x @ model.weight.T).square().mean())
        losses[-1].backward()
        return losses[-1]

    with pytest.raises(AnomalyStop):
        optimizer.step(closure)
    (looked,) = worker.looked
    assert (looked.phase, looked.source, looked.inputs[0].name) == ("init", "parameter", "bias")


class Own(torch.optim.Optimizer):
    """Evaluates, moves far, and evaluates again."""

    def __init__(self, trained, lr, max_iter):
        super().__init__(trained, {"lr": lr, "max_iter": max_iter})

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        for group in self.param_groups:
            for one in group["params"]:
                one.mul_(group["lr"])  # the move
        return closure()


def test_where_the_line_that_wrote_it_is_seen_that_is_told(work):
    worker = work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        fit(make=Own)
    assert worker.looked[0].site.source.rstrip()[-10:] == "# the move"


def test_the_next_step_begins_with_nothing_known_of_the_one_that_is_over(work):
    worker = work(on_anomaly="continue")
    fit(bad_in=None, steps=2)
    assert worker.sentinel.trials.evaluated() is None

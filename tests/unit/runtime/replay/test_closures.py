"""An optimizer of the script's own that evaluates a closure: what it does between and behind has its line."""

import pytest
import torch
from torch import nn

from nandiag.runtime.tape import between


class Climbs(torch.optim.Optimizer):
    """Climbs along the gradient before it descends (sharpness-aware minimisation)."""

    def __init__(self, parameters, rho=0.05):
        super().__init__(parameters, {"rho": rho})

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        ((group,), climbed) = (self.param_groups, [])
        norm = torch.stack([one.grad.norm() for one in group["params"]]).norm()
        for one in group["params"]:
            climb = one.grad * (group["rho"] / norm)
            one.add_(climb)
            climbed.append((one, climb))
        closure()
        for one, climb in climbed:
            one.sub_(climb)
            one.sub_(one.grad, alpha=0.1)
        return loss


class Ascends(torch.optim.Optimizer):
    """Climbs by gradients that are there before its step, and has a closure bring those that it descends by."""

    def __init__(self, parameters, rho=0.05):
        super().__init__(parameters, {"rho": rho})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1)

    @torch.no_grad()
    def step(self, closure):
        weights = self.param_groups[0]["params"]
        scale = 0.05 / torch.stack([one.grad.norm() for one in weights]).norm()
        for one in weights:
            climb = one.grad * scale
            one.add_(climb)
            self.state[one]["climb"] = climb
        self.zero_grad()
        torch.enable_grad()(closure)()
        for one in weights:
            one.sub_(self.state[one]["climb"])
        self.inner.step()
        self.zero_grad()


class Normalises(torch.optim.Optimizer):
    """Makes all its steps of one length."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for one in self.param_groups[0]["params"]:
            one.sub_(one.grad / one.grad.norm())
        return loss


def trained(make, factors, bad_in=None):
    """Train a layer, the loss of each step multiplied by one of ``factors``, and infinite in one; returns it."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = make(layer.parameters())
    for step, factor in enumerate(factors):
        inputs = torch.rand(4, 3)

        def closure(inputs=inputs, factor=factor, more=torch.inf if step == bad_in else 0.0):
            optimizer.zero_grad()
            loss = factor * layer(inputs).square().mean() + more
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
    return layer


LINES = {Climbs: 'climb = one.grad * (group["rho"] / norm)', Normalises: "one.sub_(one.grad / one.grad.norm())"}


@pytest.mark.parametrize(("make", "line"), list(LINES.items()))
def test_the_line_of_the_optimizer_is_named(work, make, line):
    worker = work()
    trained(make, (1.0, 1.0, 0.0))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert looked.site.source.strip() == line
    assert looked.facts.get("reconstructed")  # the climb has overwritten what the weights were
    assert "began_bad" not in looked.facts


def ascended(factors):
    """Train a layer by an optimizer that has gradients before its step; returns the layer."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = Ascends(layer.parameters())
    for factor in factors:
        inputs = torch.rand(4, 3)

        def loss(inputs=inputs, factor=factor):
            return factor * layer(inputs).square().mean()

        loss().backward()
        optimizer.step(lambda loss=loss: loss().backward())
    return layer


def test_so_is_the_line_before_the_first_evaluation_where_gradients_were_there_before(work):
    worker = work()
    ascended((1.0, 1.0, 0.0))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert looked.site.source.strip().startswith("scale = 0.05 / ")
    assert "began_bad" not in looked.facts


def test_what_is_taped_before_the_first_evaluation_leaves_no_trace(work):
    plain = list(ascended((1.0,) * 4).parameters())
    worker = work()
    seen = list(ascended((1.0,) * 4).parameters())
    assert not worker.harms
    assert not worker.capture.between.goes_on
    assert all(map(torch.equal, plain, seen))


@pytest.mark.parametrize("make", list(LINES))
def test_a_replay_in_the_middle_of_a_step_leaves_no_trace(work, make):
    factors = (1.0,) * 5
    plain = list(trained(make, factors, bad_in=2).parameters())
    worker = work(on_anomaly="continue")
    seen = list(trained(make, factors, bad_in=2).parameters())
    assert worker.looked[0].outcome == "found"
    assert all(bool(one.isfinite().all()) for one in plain)
    assert all(map(torch.equal, plain, seen))


def test_an_optimizer_that_makes_many_calls_is_left_alone(work, monkeypatch):
    monkeypatch.setattr(between, "_MOST_CALLS", 5)
    worker = work()
    trained(Climbs, (1.0, 1.0, 0.0))
    assert worker.sentinel.capture.between._too_many
    assert worker.looked[0].source != "op"


class Normed(Climbs):
    """Divides by the norm of what the first evaluation gave."""

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        weights = self.param_groups[0]["params"]
        norm = torch.stack([one.grad.norm() for one in weights]).norm()
        climbs = [one.grad / norm for one in weights]  # the line
        torch._foreach_add_(weights, climbs)
        closure()
        torch._foreach_sub_(weights, climbs)
        for one in weights:
            one.sub_(one.grad / one.grad.abs().max(), alpha=0.1)  # the other line


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize(("bad", "line"), [(0, "# the line"), (1, "# the other line")])
def test_the_gradients_of_the_evaluation_before_are_those_that_were_read_then(work, to_none, bad, line):
    torch.manual_seed(0)
    worker, layer = work(on_anomaly="continue"), nn.Linear(3, 2)
    optimizer, calls = Normed(layer.parameters()), []

    def closure():
        optimizer.zero_grad(set_to_none=to_none)
        calls.append(1)
        loss = layer(torch.rand(4, 3)).square().mean() * (0.0 if len(calls) == 5 + bad else 1.0)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 2), looked
    assert (looked.site.op, looked.inputs[1].zeros) == ("aten.div.Tensor", 1)
    assert looked.site.source.rstrip().endswith(line)

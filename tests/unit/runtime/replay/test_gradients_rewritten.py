"""An optimizer of the script's own that rewrites the gradients in its step: what they held before is gone."""

import pytest
import torch
from torch import nn


class InPlace(torch.optim.Optimizer):
    """Divides each gradient by its norm where it lies."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            one.grad.div_(one.grad.norm())  # the line
        for one in self.param_groups[0]["params"]:
            one.sub_(one.grad, alpha=0.1)


class Wraps(torch.optim.Optimizer):
    """Hands other gradients to an optimizer within it."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            one.grad = one.grad / one.grad.norm()  # the line
        self.inner.step()


class Evaluates(Wraps):
    """Has the gradients from a closure."""

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for one in self.param_groups[0]["params"]:
                one.grad.div_(one.grad.norm())  # the line
        self.inner.step()
        return loss


class Grows(InPlace):
    """Spoils gradients that were none of zeros."""

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            one.grad.mul_(1e30).mul_(1e30)
            one.sub_(one.grad, alpha=0.1)


def trained(make, factors):
    """Train a layer, the loss of each step multiplied by one of ``factors``; returns the optimizer."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = make(layer.parameters())
    for factor in factors:
        inputs = torch.rand(4, 3)

        def closure(inputs=inputs, factor=factor):
            optimizer.zero_grad()
            loss = factor * layer(inputs).square().mean()
            loss.backward()
            return loss.detach()

        if make is Evaluates:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return optimizer


@pytest.mark.parametrize("make", [InPlace, Wraps, Evaluates])
def test_its_line_is_found_on_gradients_of_zeros(work, make):
    worker = work()
    trained(make, (1.0, 1.0, 0.0))
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step, looked.phase) == ("found", "op", 2, "optimizer"), looked
    assert looked.site.source.rstrip().endswith("# the line")
    assert looked.facts["reconstructed"]
    assert (looked.facts.get("gradients_of_zeros") is True) == (make is not Evaluates)  # a closure is run again
    assert looked.inputs[-1].zeros == 1


def test_gradients_that_zeros_do_not_explain_stay_unexplained(work):
    worker = work()
    trained(Grows, (1.0, 1.0))
    worker.sentinel.finish()
    assert worker.looked[0].outcome == "finite"


class Scales(InPlace):
    """Multiplies each gradient where it lies by a number that it is given."""

    @torch.no_grad()
    def step(self, factor):
        for one in self.param_groups[0]["params"]:
            one.grad.mul_(factor)  # the line
            one.sub_(one.grad, alpha=0.1)


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_of_a_bad_number_the_zeros_that_stood_in_are_no_reason(work, factor):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = Scales(layer.parameters())
    for one in (1.0, factor):
        optimizer.zero_grad()
        layer(torch.rand(4, 3)).square().mean().backward()
        optimizer.step(one)
    worker.sentinel.finish()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.source.rstrip()[-10:]) == ("found", "op", "# the line")
    assert looked.facts["arg1"] == str(factor)
    assert looked.facts["gradients_unknown"] is True
    assert "gradients_of_zeros" not in looked.facts
    assert all(one.guessed for one in (*looked.inputs, *looked.outputs))


@pytest.mark.parametrize("make", [InPlace, Wraps])
def test_the_gradients_that_the_update_left_are_those_that_are_there_behind_it(work, make):
    worker = work()
    optimizer = make(nn.Linear(3, 2).parameters())
    weights = optimizer.param_groups[0]["params"]
    for one in weights:
        one.grad = torch.zeros_like(one)
    left = []

    def leaves(*_):
        left[:] = [one.grad for one in weights]

    optimizer.register_step_post_hook(leaves)
    optimizer.step()
    worker.sentinel.finish()
    assert worker.looked[0].outcome == "found"
    assert all(one.grad is grad and bool(grad.isnan().all()) for one, grad in zip(weights, left, strict=True))

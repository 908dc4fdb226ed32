"""Errors that a model raises in its own forward, and calls that were answered."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.watch.told.spoken import Refusal
from tests.unit.runtime.watch.refusing import StopError, raised

# ---------------------------------------------------------------------- raised within the model


class Chances(nn.Module):
    """A model whose own forward refuses what it made: by a loss of torch's, a draw, a check, or a condition."""

    def __init__(self, refuse):
        super().__init__()
        self.layer, self.refuse = nn.Linear(2, 3), refuse

    def forward(self, x, size):
        scores = self.layer(x) / size
        return self.refuse(torch.softmax(scores, -1))


def by_a_loss(chances):
    return nn.functional.binary_cross_entropy(chances, torch.ones(1, 3))


def by_a_draw(chances):
    torch.multinomial(chances.detach(), 1)
    return chances.mean()


def by_a_check(chances):
    return torch.distributions.Categorical(chances).log_prob(torch.ones(1))


def by_a_condition(chances):
    if not torch.isfinite(chances).all():
        raise ValueError("this went wrong")
    return chances.mean()


def by_an_error_of_its_own(chances):
    try:
        return by_a_draw(chances)
    except RuntimeError as error:
        raise StopError("drawn in vain") from error


def step_of(model, optimizer, size):
    model(torch.ones(1, 2), torch.tensor(size)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


REFUSALS = [by_a_loss, by_a_draw, by_a_check, by_a_condition, by_an_error_of_its_own]


@pytest.mark.parametrize("refuse", REFUSALS)
@pytest.mark.parametrize("steps", [3, 40])
def test_what_a_models_own_forward_refuses_has_its_line(work, refuse, steps):
    """Of 40 short steps the newest calls are only jotted down."""
    worker, model = work(), Chances(refuse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        step_of(model, optimizer, 1.0)
    before = [one.detach().clone() for one in model.parameters()]
    worker.sentinel.last.take(raised(step_of, model, optimizer, 0.0))
    (looked,) = worker.looked
    assert (looked.outcome, looked.step, looked.phase, looked.site.op) == ("found", steps, "forward", "aten.div.Tensor")
    assert looked.site.source.strip() == "scores = self.layer(x) / size"
    assert [harm.step for harm in worker.harms] == [steps]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(one.grad is None for one in model.parameters())


def test_a_call_that_raised_and_was_answered_is_let_go_of_with_the_step(work):
    worker, model = work(), Chances(by_a_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(1, 2)
    raised(model, x, torch.tensor(0.0))
    held, x = weakref.ref(x), None
    step_of(model, optimizer, 1.0)
    gc.collect()
    assert held() is None
    worker.sentinel.last.take(raised(by_a_loss, torch.full((1, 3), math.nan)))
    assert not any("self.layer" in looked.site.source for looked in worker.looked if looked.site is not None)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (KeyError("inf"), False),
        (KeyboardInterrupt(), False),
        (ValueError("this went wrong"), True),
    ],
)
def test_a_call_is_kept_only_where_its_error_may_be_of_numbers(error, kept):
    """A smaller batch, say, needs the memory of the one that found none."""
    refusal, entry = Refusal(), object()
    assert refusal.keep_call(entry, error) is kept
    assert (refusal.broken(error) is not None) is kept
    refusal.step_ends()
    assert refusal.broken(error) is None


def test_an_error_of_a_model_that_is_of_no_numbers_is_no_harm(work):
    def refuse(chances):
        raise RuntimeError("the other side has hung up")

    worker, model = work(), Chances(refuse)
    worker.sentinel.last.take(raised(model, torch.ones(1, 2), torch.tensor(0.0)))
    assert not worker.harms


class Masked(nn.Module):
    """Adds what rules some keys out; where there are too many or too few of them torch refuses that for its shape."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, keep):
        bias = torch.log(keep.float())
        return (self.layer(x) + bias).softmax(-1).square().mean()


@pytest.mark.parametrize("steps", [3, 40])
def test_an_error_about_a_shape_is_none_of_the_mask_that_the_refused_op_was_given(work, steps):
    """The first model's call is unfinished then, so that the step is run again."""
    worker, first, model = work(), nn.Linear(2, 3), Masked()
    optimizer = torch.optim.SGD([*first.parameters(), *model.parameters()], lr=0.01)
    for _ in range(steps):
        model(first(torch.ones(1, 2)), torch.tensor([1, 0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()
    error = raised(lambda: model(first(torch.ones(1, 2)), torch.tensor([1, 0])))
    worker.sentinel.last.take(error)
    assert worker.harms == []
    assert not any(looked.outcome == "found" for looked in worker.looked)


def test_an_error_that_a_model_raises_is_not_printed(work):
    """One that ends a forward early may carry a tensor, and one of the script's own may do anything when it is."""
    printed = []

    class EnoughError(Exception):
        def __str__(self):
            printed.append(self)
            raise RuntimeError("no words")

    def refuse(chances):
        raise EnoughError(chances)

    worker, model = work(), Chances(refuse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    raised(step_of, model, optimizer, 1.0)
    assert not printed
    model.refuse = by_a_loss
    worker.sentinel.last.take(raised(step_of, model, optimizer, 0.0))
    assert [looked.outcome for looked in worker.looked] == ["found"]

"""State of an optimizer that the script writes by hand between two updates: the line of the write is told."""

import math

import pytest
import torch
from torch import nn


def trained(work, kind, write, steps=8, at=5):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = kind(layer.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(4, 3) * (step + 1)).square().mean().backward()
        optimizer.step()
        if step == at:
            for one in layer.parameters():
                write(optimizer.state[one])
    return worker.looked[0]


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def in_place(state):
    state["exp_avg_sq"].sub_(1e6)  # the line


def anew(state):
    state["exp_avg_sq"] = state["exp_avg_sq"] - 1e6  # the line


def of_list(state):
    torch._foreach_sub_([state["exp_avg_sq"]], 1e6)  # the line


@pytest.mark.parametrize("write", [in_place, anew, of_list])
def test_a_mean_of_squares_that_was_written_below_zero(work, write):
    looked = trained(work, adam, write)
    assert (looked.site.op, looked.facts["updated_before"]) == ("aten.sqrt.default", True)
    written = looked.facts["state_written"]
    assert {key: one[2] for key, one in written.items()} == {"exp_avg_sq": _line(write)}


def _line(write):
    return {
        in_place: 'state["exp_avg_sq"].sub_(1e6)  # the line',
        anew: 'state["exp_avg_sq"] = state["exp_avg_sq"] - 1e6  # the line',
        of_list: 'torch._foreach_sub_([state["exp_avg_sq"]], 1e6)  # the line',
    }[write]


def by_number(state):
    state["momentum_buffer"][0] = math.inf  # the line


def test_a_bad_number_in_the_momentum(work):
    looked = trained(work, sgd, by_number)
    assert (looked.outcome, looked.phase, looked.site.source.strip()) == (
        "found", "optimizer", 'state["momentum_buffer"][0] = math.inf  # the line',
    )  # fmt: skip
    assert "momentum_buffer of weight" in looked.reason


def test_what_was_written_finite_is_not_to_blame(work):
    def write(state):
        state["momentum_buffer"].zero_()

    looked = trained(work, lambda parameters: torch.optim.SGD(parameters, lr=1e30, momentum=0.9), write, at=0)
    assert "zero_" not in (looked.site.source or "" if looked.site is not None else "")


def test_of_the_first_update_it_is_not_known_that_nothing_was_loaded(work):
    worker = work()
    layer = nn.Linear(3, 2)
    optimizer = adam(layer.parameters())
    state = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 3), "exp_avg_sq": torch.full((2, 3), -1e6)}
    bias = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: state, 1: bias}})
    layer(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    assert "updated_before" not in worker.looked[0].facts

"""A number of Python's that is not finite and goes into an op: whose it is, where every op is watched."""

import numpy as np
import pytest
import torch


def train(sigma, *, reads=False):
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        (gradient,) = torch.autograd.grad((weight * 2).sum(), weight)
        made = 1.0 / torch.tensor([0.0, 2.0, 4.0])
        factor = made.clamp(max=1.0)
        number = made[0].item() if reads else sigma
        with torch.no_grad():
            weight -= 0.1 * gradient * factor + number * torch.tensor([1.0, -2.0, 3.0])  # spoilt


@pytest.mark.parametrize("sigma", [float("inf"), np.float64("inf")])
def test_what_a_bound_made_finite_again_is_not_whence_a_number_came(work, sigma):
    worker = work(level="op")
    train(sigma)
    looked = worker.looked[0]
    assert looked.site.source.strip().endswith("# spoilt"), looked
    assert looked.facts["script_name"] == "number"


def test_but_a_number_that_was_read_off_it_is(work):
    worker = work(level="op")
    train(0.0, reads=True)
    looked = worker.looked[0]
    assert "1.0 / torch.tensor" in looked.site.source, looked

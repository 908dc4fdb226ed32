"""The weight on the diagonal of a matrix that has no factor any more."""

import pytest
import torch

from nandiag.runtime.kernels.diagonals import on_diagonal

EYE = torch.eye(3)


def weight(value):
    return torch.tensor(value, requires_grad=True)


def gram(scale):
    x = torch.arange(3.0)
    return scale.exp() * torch.exp(-(x[:, None] - x[None]).square())


@pytest.mark.parametrize(
    "added",
    [
        lambda w: w * EYE,
        lambda w: EYE * w,
        lambda w: w.view(1, 1) * (2 * EYE),
        lambda w: torch.diag_embed(w.expand(3)),
    ],
)
def test_a_weight_below_0_that_is_added_to_the_diagonal_is_found(added):
    below = weight(-0.1)
    for matrix in (gram(weight(1.0)) + added(below), (added(below) + gram(weight(1.0))) / 2 - 0.0 * EYE):
        assert on_diagonal(matrix.grad_fn) is below


@pytest.mark.parametrize(
    "added",
    [
        lambda w: w.exp() * EYE,
        lambda w: -w * EYE,
        lambda w: w * torch.ones(3, 3),
        lambda w: w * -EYE,
        lambda w: w.detach() * EYE,
    ],
)
def test_no_other_weight_is_blamed(added):
    assert on_diagonal((gram(weight(-1.0)) + added(weight(-0.1))).grad_fn) is None
    assert on_diagonal((gram(weight(-1.0)) + weight(0.1) * EYE).grad_fn) is None

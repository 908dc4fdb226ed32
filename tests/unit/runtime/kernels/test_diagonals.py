"""The weight on the diagonal of a matrix that has no factor any more."""

import pytest
import torch
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.kernels.diagonals import on_diagonal

EYE = torch.eye(3)


def weight(value):
    return torch.tensor(value, requires_grad=True)


def gram(scale):
    x = torch.arange(3.0)
    return scale.exp() * torch.exp(-(x[:, None] - x[None]).square())


def flat(scale):
    """Return a matrix whose least eigenvalue is 0."""
    return scale.exp() * torch.ones(3, 3)


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
    for matrix in (flat(weight(0.0)) + added(below), (added(below) + flat(weight(1.0))) / 2 - 0.0 * EYE):
        found = on_diagonal(matrix)
        assert found.tensor is below
        assert found.least == pytest.approx(-found.lowers, abs=1e-6)


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
    assert on_diagonal(flat(weight(-1.0)) + added(weight(-0.1))) is None
    assert on_diagonal(flat(weight(-1.0)) + weight(0.1) * EYE) is None


@pytest.mark.parametrize(
    "matrix",
    [
        lambda w: torch.diag(weight(1.0).expand(3) * torch.tensor([1.0, 1.0, -2.0])) + w * EYE,  # bad without it
        lambda w: gram(weight(1.0)) + w * EYE,  # positive definite with it
        lambda w: flat(weight(0.0)) - 0.3 * EYE + w * EYE + weight(0.2) * EYE,
        lambda w: flat(weight(0.0)) - 0.3 * EYE + w * EYE + weight(0.2).exp() * EYE,
        lambda w: flat(weight(0.0)) + w * EYE - weight(-0.2) * EYE - EYE,
        lambda w: flat(weight(9.0)) + weight(-1e-4) * EYE + w.square() * 0.0,  # as good as 0
    ],
)
def test_a_weight_is_not_blamed_for_what_it_does_not_do(matrix):
    assert on_diagonal(matrix(weight(-0.1))) is None


def test_of_two_weights_on_the_diagonal_the_lower_is_named():
    low, high = weight(-0.3), weight(0.1)
    found = on_diagonal(flat(weight(0.0)) + high * EYE + low * EYE)
    assert found.tensor is low
    assert found.lowers == pytest.approx(0.2)


def test_a_constant_that_a_backward_let_go_of_is_taken_for_a_unit_matrix_where_that_is_to_be_shown():
    below = weight(-0.1)
    matrix = weight(1.0) * torch.ones(3, 3) + below * EYE
    matrix.sum().backward()
    assert on_diagonal(matrix) is None
    assert on_diagonal(matrix, sure=False).tensor is below


class Covariance(nn.Module):
    """Takes the factor that ``cholesky_ex`` makes, whatever that says of it."""

    def __init__(self, rest):
        super().__init__()
        self.rest = rest
        self.noise = nn.Parameter(torch.tensor(0.3))

    def forward(self):
        matrix = self.rest + 0.0 * self.noise + self.noise * EYE
        other, _ = torch.linalg.cholesky_ex(2.0 * EYE)
        factor, _ = torch.linalg.cholesky_ex(matrix)
        return (factor.diagonal() * other.diagonal()).sum() * 0.0 + factor.diagonal().log().sum()


@pytest.mark.parametrize(("below", "told"), [(0.0, True), (-2.0, False)])
def test_the_matrix_is_asked_whose_factor_a_logarithm_was_given(work, below, told):
    worker = work()
    model = Covariance(torch.ones(3, 3) + torch.diag(torch.tensor([0.0, 0.0, 2.0])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        if step == 3:
            with torch.no_grad():
                model.noise.fill_(-1e-2)
                model.rest[0, 0] += below
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    (look,) = [one for one in worker.events(Looked) if one.outcome == "found"]
    assert (look.step, look.site.op) == (3, "aten.log.default")
    assert look.facts.get("diagonal") == (["noise", pytest.approx(-0.01)] if told else None)
    assert not told or look.facts["diagonal_least"] == pytest.approx([-0.01, 0.01], abs=1e-5)


@pytest.mark.parametrize(("least", "many"), [(-1.5, False), (-1.5, True), (0.5, True)])
def test_what_stands_on_the_diagonal_of_the_matrix_is_told_where_no_weight_alone_is_to_blame(work, least, many):
    class Factor(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))
            self.matrix = torch.eye(3).repeat(2, 1, 1) if many else torch.eye(3)

        def forward(self):
            factor, _ = torch.linalg.cholesky_ex(self.scale * self.matrix)
            return torch.diagonal(factor, dim1=-2, dim2=-1).log().sum()

    worker = work()
    model = Factor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(4):
        if step == 3:
            model.matrix[..., 2, 2] = least
            model.matrix[..., 0, 2] = model.matrix[..., 2, 0] = 2.0
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    (look,) = [one for one in worker.events(Looked) if one.outcome == "found"]
    assert look.facts["factored_dims"] == 2 + many
    assert look.facts["factored_diagonal"] == pytest.approx([least, (2 + abs(least)) / 3])
    assert "diagonal" not in look.facts

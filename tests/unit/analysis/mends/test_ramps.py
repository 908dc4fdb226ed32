"""Equal values of a matrix are told apart by numbers that are of a size with it: pasted, the gradient is finite."""

import pytest
import torch

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends.placing import on


def mended(at, by_hand, line, op):
    shown = line.partition(" = ")[2]
    facts = at("div", (by_hand.fact(zeros=2),), (by_hand.fact(nan=2),), node=f"Linalg{op.title()}Backward0",
               forward_op=f"aten._linalg_{op}.default", phase="backward", **on(line, shown))  # fmt: skip
    return explain(facts)[1].suggestions[0].code


@pytest.mark.parametrize("scale", [0.0, 1.0, 200.0, 2000.0, 1e6])
@pytest.mark.parametrize("batch", [(), (1.0, 1e-6, 3.0)])
@pytest.mark.parametrize(("op", "names", "shape"), [
    ("eigh", "val, vec", (4, 4)), ("eig", "val, vec", (4, 4)), ("svd", "u, val, vec", (4, 4)),
    ("svd", "u, val, vec", (3, 5)),
])  # fmt: skip
def test_the_gradient_is_finite_whatever_the_size_of_the_matrix(at, by_hand, scale, batch, op, names, shape):
    words = ", full_matrices=False" if op == "svd" else ""
    code = mended(at, by_hand, f"{names} = torch.linalg.{op}(A{words})", op)
    weight = torch.full((shape[0],), scale, requires_grad=True)
    matrix = torch.diag(weight) @ torch.eye(*shape)
    matrix = torch.stack([matrix * one for one in batch]) if batch else matrix
    found = {"torch": torch, "A": matrix}
    exec(code, found)  # noqa: S102 - as a user would paste it
    (found["vec"].abs().sum() + found["val"].abs().sum()).backward()
    assert weight.grad.isfinite().all()
    least = scale * min(batch, default=1.0)
    assert torch.allclose(found["val"].abs().amin(), torch.tensor(least), rtol=1e-3, atol=1e-5)


def test_what_is_factorised_is_not_computed_several_times(at, by_hand):
    code = mended(at, by_hand, "val, vec = torch.linalg.eigh(h.mT @ h)", "eigh")
    assert code.startswith("matrix = h.mT @ h\nval, vec = torch.linalg.eigh(matrix + ")
    assert code.count("h.mT") == 1

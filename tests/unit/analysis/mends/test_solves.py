"""Solves: a little goes on the diagonal of the matrix, and where a factor is given, of what was factorised."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site, Statement
from tests.unit.analysis.mends.told import placed


def solve(at, by_hand, op, line, *, block=(), names=(), shape=(3, 3)):
    given = (by_hand.fact(shape=shape), by_hand.fact(shape=shape))
    facts = at(op, given, (by_hand.fact(nan=2),), **placed(line, line.partition("= ")[2]))
    facts = replace(facts, origin=replace(facts.origin, line=19))
    meanings = tuple(Meaning(name, text, "train.py", 18) for name, text in names)
    around = Around(meanings, (), block=tuple(Statement(*one) for one in block))
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def told(facts):
    cause = explain(facts)[1]
    return cause.slug, cause.evidence[0], cause.suggestions[0]


EYE = "torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)"
ADDED = f"k + 1e-5 * k.diagonal().abs().mean() * {EYE}"


@pytest.mark.parametrize(
    ("op", "line", "made"),
    [
        ("cholesky_solve", "a = torch.cholesky_solve(y[:, None], L)", "L, info = torch.linalg.cholesky_ex(k)"),
        ("cholesky_solve", "a = y.cholesky_solve(L)", "L, info = torch.linalg.cholesky_ex(k)"),
        ("cholesky_inverse", "a = torch.cholesky_inverse(L)", "L, info = torch.linalg.cholesky_ex(k)"),
        ("linalg_solve_triangular", "a = torch.linalg.solve_triangular(L, y, upper=False)",
         "L, info = torch.linalg.cholesky_ex(k)"),
        ("linalg_lu_solve", "a = torch.linalg.lu_solve(L, p, y)", "L, p, info = torch.linalg.lu_factor_ex(k)"),
        ("lu_solve", "a = torch.lu_solve(y, L, p)", "L, p, info = torch.linalg.lu_factor_ex(k)"),
    ],
)  # fmt: skip
def test_the_line_that_made_the_factor_is_mended(at, by_hand, op, line, made):
    slug, seen, help_ = told(solve(at, by_hand, op, line, block=[(17, "k = f(x)"), (18, made), (19, line)]))
    assert slug == "linalg_degenerate"
    assert "L of line 18" in seen
    assert "info" in seen
    assert help_.code == made.replace("(k)", f"({ADDED})") + "  # line 18\nassert not info.any()"
    assert "line 18" in help_.text


def test_a_batch_of_matrices_has_a_scale_each_and_an_expression_gets_a_name(at, by_hand):
    made = "L, _ = torch.linalg.cholesky_ex(k(x) + noise)"
    facts = solve(at, by_hand, "cholesky_solve", "a = torch.cholesky_solve(y, L)", block=[(18, made)], shape=(2, 3, 3))
    first, second = told(facts)[2].code.splitlines()
    assert first == "matrix = k(x) + noise"
    assert second.startswith("L, _ = torch.linalg.cholesky_ex(matrix + 1e-5 * matrix.diagonal(dim1=-2, dim2=-1)")


def test_a_factor_by_name_alone(at, by_hand):
    line = "a = torch.cholesky_solve(y, L)"
    code = told(solve(at, by_hand, "cholesky_solve", line, names=[("L", "torch.linalg.cholesky(k)")]))[2].code
    assert code == f"L = torch.linalg.cholesky({ADDED})  # line 18"
    assert told(solve(at, by_hand, "cholesky_solve", line))[2].code.startswith("torch.linalg.cholesky(K + ")


@pytest.mark.parametrize(
    ("op", "line", "code"),
    [
        ("_linalg_solve_ex", "a = torch.linalg.solve(A, B)",
         "a = torch.linalg.solve(A + 1e-6 * torch.eye(A.shape[-1], device=A.device), B)"),
        ("triangular_solve", "a = torch.triangular_solve(b, A)",
         "a = torch.triangular_solve(b, A + 1e-6 * torch.eye(A.shape[-1], device=A.device))"),
        ("linalg_solve_triangular", "a = torch.linalg.solve_triangular(A, B, upper=True)",
         "a = torch.linalg.solve_triangular(A + 1e-6 * torch.eye(A.shape[-1], device=A.device), B, upper=True)"),
    ],
)  # fmt: skip
def test_the_matrix_is_mended_and_not_the_right_hand_side(at, by_hand, op, line, code):
    assert told(solve(at, by_hand, op, line))[2].code == code

"""Eigenvalues of 0 that a line divides by: the matrix is mended before they are made, for their gradient as well."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site, Statement
from tests.unit.analysis.mends.told import placed

EIGH = "lam, u = torch.linalg.eigh(cov)"


def of_values(at, by_hand, op, line, call, *, made=EIGH, weights=True, shape=(6,), then=(), phase="loss"):
    given = (by_hand.fact(zeros=5, shape=shape, min=0.0, max=1e-15, absmax=1e-15, absmin=1e-15),)
    given = (by_hand.fact(shape=(20, 6)), *given) if op == "div" else given
    bad = by_hand.fact(shape=(6,), **({"neginf": 5} if op == "log" else {"posinf": 5}))
    around = Around(block=(Statement(10, made), *(Statement(11, one) for one in then), Statement(12, line)))
    facts = at(
        op,
        given,
        (bad,),
        line=12,
        **{**placed(line, call), "phase": phase},
        extra={"of_weights": weights, **({"arg1": -0.5} if op == "pow" else {})},
    )
    return explain(replace(facts, look=replace(facts.look, site=Site(around=around))))[1].suggestions


@pytest.mark.parametrize(
    ("op", "line", "call"),
    [
        ("rsqrt", "return z @ u * lam.rsqrt() @ u.T", "lam.rsqrt()"),
        ("pow", "scale = lam.clamp_min(0) ** -0.5", "lam.clamp_min(0) ** -0.5"),
        ("div", "y = z @ u / lam.sqrt() @ u.T", "z @ u / lam.sqrt()"),
        ("div", "y = z @ u / lam", "z @ u / lam"),
        ("log", "y = u * torch.log(lam) @ u.T", "torch.log(lam)"),
    ],
)
def test_the_matrix_is_mended_before_it_is_taken_apart(at, by_hand, op, line, call):
    told = of_values(at, by_hand, op, line, call)
    assert "lam is made by eigh in line 10" in told[0].text
    assert "would be too late" in told[0].text
    code, _, tag = told[0].code.partition("  # ")
    assert tag == "line 10"
    assert "1e-17" not in "".join(one.code or "" for one in told)
    for z in (torch.zeros(20, 6), torch.randn(20, 6, generator=torch.Generator().manual_seed(1))):
        w = torch.ones(6, requires_grad=True)
        names = {"torch": torch, "cov": (z * w).T @ (z * w) / 19}
        exec(code, names)  # noqa: S102 - the tests' own
        ((names["u"] * names["lam"].rsqrt()) @ names["u"].T).sum().backward()
        assert w.grad.isfinite().all()
        exact = torch.linalg.eigh((z.T @ z / 19).double())[0]
        assert torch.allclose(names["lam"].double(), exact, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", [(64,), (64, 1), (1, 64), (8, 64, 1)])
def test_of_many_values_the_numbers_that_part_them_are_not_small_and_another_way_comes_first(at, by_hand, shape):
    told = of_values(at, by_hand, "rsqrt", "y = lam.rsqrt()", "lam.rsqrt()", shape=shape)
    assert told[0].text.startswith("Whiten by a Cholesky factor")
    assert all(one.code is None for one in told)


@pytest.mark.parametrize("shape", [(64, 6), (64, 6, 1)])
def test_of_many_matrices_each_has_few_values(at, by_hand, shape):
    assert "arange" in of_values(at, by_hand, "rsqrt", "y = lam.rsqrt()", "lam.rsqrt()", shape=shape)[0].code


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (("lam = lam.clamp(min=0)",), True),
        (("kept = lam.clamp(min=0).unsqueeze(-1)",), True),
        (("lam = lam + 1e-11",), False),
        (("lam = f(lam)",), False),
        (("other = lam.clamp(min=0)", "kept = other.abs()", "lam = kept.abs()"), False),
    ],
)
def test_a_bound_on_a_line_of_its_own_is_gone_behind(at, by_hand, then, told):
    name = then[-1].partition(" ")[0]
    found = of_values(at, by_hand, "rsqrt", f"y = {name}.rsqrt()", f"{name}.rsqrt()", then=then)
    assert ("arange" in (found[0].code or "")) is told
    assert ("is made by eigh in line 10" in found[0].text) is told


def test_singular_values_are_the_second_that_svd_hands_back(at, by_hand):
    told = of_values(at, by_hand, "div", "y = a / s", "a / s", made="u, s, vh = torch.linalg.svd(m)")
    assert "made by svd in line 10" in told[0].text
    assert told[0].code.startswith("u, s, vh = torch.linalg.svd(m + 1e-5")


def test_without_gradients_nothing_is_said_of_them(at, by_hand):
    told = of_values(at, by_hand, "rsqrt", "y = lam.rsqrt()", "lam.rsqrt()", weights=False)
    assert "gradient" not in told[0].text


@pytest.mark.parametrize("made", ["lam = cov.diagonal()", "u, lam = torch.linalg.eigh(cov)", "lam, u = f(cov)"])
def test_other_values_have_their_own_mend(at, by_hand, made):
    told = of_values(at, by_hand, "rsqrt", "y = lam.rsqrt()", "lam.rsqrt()", made=made)
    assert all("arange" not in (one.code or "") for one in told)


def test_a_matrix_that_is_computed_there_is_told_in_prose(at, by_hand):
    told = of_values(at, by_hand, "rsqrt", "y = lam.rsqrt()", "lam.rsqrt()", made="lam, u = torch.linalg.eigh(f(z))")
    assert told[0].code is None


def test_where_data_are_prepared_a_bound_in_the_line_itself_will_do(at, by_hand):
    """No gradient goes through it that would divide by the differences of the values."""
    told = of_values(at, by_hand, "rsqrt", "x = z @ u * lam.rsqrt()", "lam.rsqrt()", weights=False, phase="data")
    assert told[0].code == "x = z @ u * (lam + 1e-17).rsqrt()"  # small beside the largest, which is 1e-15 here
    assert "too late" not in told[0].text

"""What several lines of a function break by is bounded where it is made."""

from dataclasses import replace

import pytest

from nandiag.events import Around, Site, Statement
from tests.unit.analysis.mends.told import advice, placed

_EIGH = "lam, vec = torch.linalg.eigh(k)"


def _told(at, by_hand, op, shown, lines, **fact):
    given = by_hand.fact(**{"min": -3e-6, "max": 52.0, "absmax": 52.0, **fact})
    facts = at(op, (given,), (by_hand.fact(nan=1),), extra={"of_weights": True, "made_by": ["LinalgEighBackward0"]},
               **placed(lines[-2], shown))  # fmt: skip
    block = tuple(Statement(17 + number, line) for number, line in enumerate(lines))
    facts = replace(facts, origin=replace(facts.origin, line=17 + len(lines) - 2))
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=Around(block=block)))))
    return next(one for one in told if one.code is not None)


@pytest.mark.parametrize(
    ("other", "behind"),
    [
        ("fit = (proj ** 2 / lam).sum()", "return fit + log_det"),
        ("half = vec * lam.rsqrt()", "return fit + log_det"),
        ("half = vec * lam ** -0.5", "return fit + log_det"),
        ("proj = vec.T @ y", "return (proj ** 2 / (2 * lam)).sum()"),
    ],
)
def test_eigenvalues_that_another_line_divides_by_are_bounded_where_they_are_made(at, by_hand, other, behind):
    told = _told(at, by_hand, "log", "torch.log(lam)", (_EIGH, other, "log_det = torch.log(lam).sum()", behind))
    assert told.code == "lam = lam.clamp_min(1e-5)  # behind line 17"
    line = 20 if "lam" in behind else 18
    assert f"lam would break line {line} as well" in told.text


@pytest.mark.parametrize(("least", "bound"), [(-3e-9, "1e-6"), (-3e-4, "1e-3"), (-0.5, "1e-3")])
def test_the_bound_is_what_rounding_leaves_of_it(at, by_hand, least, bound):
    lines = (_EIGH, "fit = (proj ** 2 / lam).sum()", "log_det = torch.log(lam).sum()", "return fit + log_det")
    told = _told(at, by_hand, "log", "torch.log(lam)", lines, min=least)
    assert told.code == f"lam = lam.clamp_min({bound})  # behind line 17"


@pytest.mark.parametrize(
    "other",
    ["fit = (proj ** 2 / lam.clamp_min(1e-6)).sum()", "fit = lam.sum()", "fit = proj / (lam + 1)", "fit = lam ** 2"],
)
def test_where_no_other_line_breaks_by_it_its_own_is_mended(at, by_hand, other):
    line = "log_det = torch.log(lam).sum()"
    told = _told(at, by_hand, "log", "torch.log(lam)", (_EIGH, other, line, "return fit + log_det"))
    assert told.code == "log_det = torch.log(lam.clamp_min(1e-12)).sum()"


def test_so_is_what_is_0_where_a_logarithm_is_taken(at, by_hand):
    lines = ("w = model(x)", "g = a / w", "y = torch.log(w)", "return g + y")
    told = _told(at, by_hand, "log", "torch.log(w)", lines, min=0.0, zeros=1)
    assert told.code == "w = w.clamp_min(1e-6)  # behind line 17"

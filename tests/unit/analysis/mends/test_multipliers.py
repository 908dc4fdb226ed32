"""Numbers of the script's own that a loop multiplies until the dtype does not hold them."""

from dataclasses import replace

import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Carried, History, Site
from tests.unit.analysis.mends.told import placed

LINE = "p.add_(torch.randn_like(p) * noise)"
LOSSES = (1.0,) * 8 + (24053.0, 24053.0)


def grown(at, by_hand, statement, *, given=1e40, line=9):
    past = History(tuple(range(10)), LOSSES, LOSSES, (0.1,) * 10, (None,) * 10)
    facts = at("mul", (by_hand.fact(),), (by_hand.fact(posinf=1),), step=10, history=past,
               extra={"float64_finite": True, "float64_absmax": 1e40, "arg1": given},
               **placed(LINE, "torch.randn_like(p) * noise"))  # fmt: skip
    around = Around(carried=(Carried("noise", line, statement),))
    return explain(replace(facts, look=replace(facts.look, site=Site(around=around))))


@pytest.mark.parametrize(
    ("statement", "code"),
    [("noise *= 1e4", "noise = min(noise * 10000.0, 1e6)"),
     ("noise = factor * noise", "noise = min(factor * noise, 1e6)"),
     ("noise *= 2 if late else 1", "noise = min(noise * (2 if late else 1), 1e6)")],
)  # fmt: skip
def test_the_number_is_bound_where_the_loop_multiplies_it(at, by_hand, statement, code):
    story, mechanism = grown(at, by_hand, statement)
    assert (story, mechanism.slug) == (None, "overflow")
    assert mechanism.suggestions[0].code == code
    assert "line 9 multiplies noise" in mechanism.suggestions[0].text


@pytest.mark.parametrize(("given", "shown"), [(2.0**128, "2**128"), (3.41e38, "3.41e38"), (1e40, "1e40")])
def test_the_first_power_of_two_that_is_too_large_is_no_number_that_the_dtype_holds(at, by_hand, given, shown):
    """In few digits it is 3.4e38, as the end of float32 is."""
    assert f"The number {shown} is more than" in grown(at, by_hand, "noise *= 16", given=given)[1].suggestions[0].text


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("noise *= 1e4", 1e30),
        ("noise = torch.mul(noise, 2)", 1e40),
        ("noise *= (", 1e40),
        ("", 1e40),
    ],
)
def test_a_number_that_fits_or_a_tensor_or_what_is_no_python_is_not_told(at, by_hand, statement, given):
    story, mechanism = grown(at, by_hand, statement, given=given)
    told = [one.code or "" for cause in (story, mechanism) if cause is not None for one in cause.suggestions]
    assert not any("min(" in one for one in told)


PENALTY = "return 0.5 * self.rho * value.square()"


@pytest.mark.parametrize(
    ("given", "statement", "code"),
    [(144000.0, "self.rho *= self.growth", "self.rho = min(self.rho * self.growth, 100)"),
     (2.0, "self.rho *= self.growth", None),
     (144000.0, "self.rho *= self.grow()", None)],
)  # fmt: skip
def test_a_number_that_has_grown_with_the_loss_is_bound_before_gradients_are_clipped(
    at, by_hand, given, statement, code
):
    norms = (1.0,) * 8 + tuple(30.0 * 4**i for i in range(10))
    past = History(tuple(range(18)), norms, norms, (0.1,) * 18, (None,) * 18)
    facts = at("mul", (by_hand.fact(),), (by_hand.fact(posinf=1),), step=18, history=past,
               extra={"float64_finite": True, "float64_absmax": 1e40, "arg1": given},
               **placed(PENALTY, "0.5 * self.rho * value.square()"))  # fmt: skip
    around = Around(carried=(Carried("self.rho", 9, statement),))
    story, _ = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert story.slug == "gradient_explosion"
    assert (story.suggestions[0].code == code) is (code is not None)
    assert any("clip_grad_norm_" in (one.code or "") for one in story.suggestions)

"""What the report says of where, and of how many, in words that are true of it."""

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain
from nandiag.events import Site
from tests.unit.analysis.mends.told import placed


@pytest.mark.parametrize(("low", "high", "seen"), [(-1.0, 1.0, "is -1 and 1 in"), (-1.0, 0.5, "is -1 in")])
def test_each_end_of_the_domain_that_is_reached_is_told_and_nothing_of_rounding(at, by_hand, low, high, seen):
    given = (by_hand.fact(min=low, max=high, absmax=1.0),)
    line = placed("z = torch.erfinv(2 * u - 1)", "torch.erfinv(2 * u - 1)")
    cause = explain(at("erfinv", given, (by_hand.fact(neginf=1),), **line))[1]
    assert seen in cause.evidence[0]
    assert all("rounding" not in one.text for one in cause.suggestions)


@pytest.mark.parametrize(("many", "said"), [(1, "It came into torch at data.py:4."), (2, "They came into torch")])
def test_one_value_is_one(by_hand, many, said):
    look = by_hand.found(5, source="input", inputs=(by_hand.fact("x", nan=many),), facts={"came_in": "data.py:4"})
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict.evidence
    assert any(text.startswith(said) for text in told)


@pytest.mark.parametrize(
    ("owner", "where"), [("Poincare", "forward, in dist() of Poincare"), (None, "forward, outside all modules")]
)
def test_a_method_that_is_no_forward_is_told_with_its_class(by_hand, owner, where):
    site = Site(op="aten.acosh.default", file="train.py", line=16, function="dist", source="acosh(x)", owner=owner)
    look = by_hand.found(5, site=site, inputs=(by_hand.fact(min=-2.0),), outputs=(by_hand.fact(nan=1),))
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(5), look, world=1), world=1)).verdict
    assert where in verdict.summary


def test_a_few_bad_samples_are_all_named(at, by_hand):
    bad = by_hand.fact("input", nan=2, shape=(16, 3), first_bad=(1, 1))
    extra = {"dataset": "Rows", "dataset_index": 401, "bad_rows": 2, "bad_samples": [[1, 401], [2, 402]]}
    cause = explain(at("addmm", (bad,), (), source="input", extra=extra, **placed("y = net(x)", "net(x)")))[0]
    assert cause.evidence[0] == "samples 1 and 2 of the batch are bad: Rows[401] and Rows[402]."

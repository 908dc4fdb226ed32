"""What lines of the script count up by whole numbers is bounded at 1 where it divides, whatever dtype it has."""

from dataclasses import replace

import pytest

from nandiag.events import Around, Site, Written
from tests.unit.analysis.mends.told import advice, placed


def divided(at, by_hand, line, *counting, phase="optimizer", kind="posinf", raised=None):
    expression = line.partition("= ")[2]
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0, absmin=None)
    outputs = (by_hand.fact(shape=(), **{kind: 1}),)
    op, given = ("reciprocal", (zero,)) if expression.startswith("1 /") else ("div", (by_hand.fact(), zero))
    facts = at(op, given, outputs, **{**placed(line, expression), "phase": phase})
    written = tuple(Written(name, (3, 9), counts=True, raised=raised) for name in counting)
    return advice(replace(facts, look=replace(facts.look, site=Site(around=Around((), (), written=written)))))


@pytest.mark.parametrize("phase", ["optimizer", "forward"])
@pytest.mark.parametrize("below", ["self.t", "(self.t - self.burn_in)", "(self.t - 5)"])
def test_a_divisor_that_counts_is_at_least_1(at, by_hand, below, phase):
    told = divided(at, by_hand, f"a = 1 / {below}", "self.t", phase=phase)
    assert told[0].code == f"a = 1 / {below}.clamp_min(1)"


@pytest.mark.parametrize(("below", "counting"), [("(self.t * self.dt)", ["self.t"]), ("(self.t - self.b)", [])])
def test_what_does_not_count_is_not_bounded_at_1(at, by_hand, below, counting):
    assert "clamp_min(1)" not in divided(at, by_hand, f"a = 1 / {below}", *counting)[0].code


@pytest.mark.parametrize("phase", ["optimizer", "forward", "data"])
@pytest.mark.parametrize("above", ["1", "(p - self.avg[k])"])
def test_what_is_raised_behind_the_line_is_raised_before_it(at, by_hand, above, phase):
    told = divided(at, by_hand, f"a = {above} / self.n", "self.n", phase=phase, raised=9)
    assert told[0].code == f"a = {above} / (self.n + 1)"
    assert "line 9 adds 1 to it behind this one" in told[0].text
    assert not any("clamp_min" in (one.code or "") for one in told)


def test_where_nothing_came_in_yet_the_count_is_right(at, by_hand):
    """``mean = total / n`` ahead of ``total += x`` and ``n += 1``: by one more it would be another mean."""
    told = divided(at, by_hand, "mean = self.total / self.n", "self.n", phase="forward", kind="nan", raised=9)
    assert told[0].code == "mean = self.total / self.n.clamp_min(1)"


def test_so_is_a_number_of_pythons(at, by_hand):
    line = "avg = total / n"
    facts = at("div", (by_hand.fact(),), (by_hand.fact(posinf=1),), extra={"arg1": 0}, **placed(line, "total / n"))
    written = (Written("n", (3, 9), counts=True, raised=9),)
    told = advice(replace(facts, look=replace(facts.look, site=Site(around=Around(written=written)))))
    assert [one.code for one in told] == ["avg = total / (n + 1)"]

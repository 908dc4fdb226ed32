"""What lines of the script count up by whole numbers is bounded at 1 where it divides, whatever dtype it has."""

from dataclasses import replace

import pytest

from nandiag.events import Around, Site, Written
from tests.unit.analysis.mends.told import advice, placed


def divided(at, by_hand, line, *counting, phase="optimizer"):
    expression = line.partition("= ")[2]
    zero = by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0, absmin=None)
    outputs = (by_hand.fact(shape=(), posinf=1),)
    facts = at("reciprocal", (zero,), outputs, **{**placed(line, expression), "phase": phase})
    written = tuple(Written(name, (3, 9), counts=True) for name in counting)
    return advice(replace(facts, look=replace(facts.look, site=Site(around=Around((), (), written=written)))))


@pytest.mark.parametrize("phase", ["optimizer", "forward"])
@pytest.mark.parametrize("below", ["self.t", "(self.t - self.burn_in)", "(self.t - 5)"])
def test_a_divisor_that_counts_is_at_least_1(at, by_hand, below, phase):
    told = divided(at, by_hand, f"a = 1 / {below}", "self.t", phase=phase)
    assert told[0].code == f"a = 1 / {below}.clamp_min(1)"


@pytest.mark.parametrize(("below", "counting"), [("(self.t * self.dt)", ["self.t"]), ("(self.t - self.b)", [])])
def test_what_does_not_count_is_not_bounded_at_1(at, by_hand, below, counting):
    assert "clamp_min(1)" not in divided(at, by_hand, f"a = 1 / {below}", *counting)[0].code

"""Where a small number in a divisor's place, or a bound, would hide what is wrong: the mend that is right there."""

import pytest

from tests.unit.analysis.mends.told import advice, on, placed


def by_one_number(at, by_hand, line, expression, **more):
    given = (by_hand.fact(), by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0, absmax=0.0))
    return at("div", given, (by_hand.fact(posinf=9),), **{**placed(line, expression), "phase": "optimizer", **more})


@pytest.mark.parametrize("ends", [None, ""])
def test_a_correction_of_an_average_that_is_not_zero_is_kept_by_no_floor(at, by_hand, ends):
    facts = by_one_number(at, by_hand, "v.copy_(self.shadow[k] / (1 - self.prod))", "self.shadow[k] / (1 - self.prod)")
    (told,) = advice(on(facts, written=[("self.prod", (9, 19))], ends=ends))
    assert "self.prod, set in lines 9 and 19, is 1" in told.text
    assert "product of the decays" in told.text
    assert told.code == (None if ends is None else "if self.prod == 1: return")


def test_what_an_update_divides_by_one_zero_is_no_floor_where_it_is_large(at, by_hand):
    (told,) = advice(by_one_number(at, by_hand, "w = w / (1 - self.frac)", "w / (1 - self.frac)"))
    assert told.code is None
    assert "what it divides is not: look at" in told.text

"""Whether what is divided by may be below zero, as far as the text tells, where this step's are 0 all over."""

import pytest

from tests.unit.analysis.ops.told import codes, on


@pytest.mark.parametrize(
    ("below", "size"),
    [
        ("(d ** 2)", True),
        ("(d ** k)", False),  # of an odd k below zero where d is
        ("(norm ** k)", True),
        ("d.pow(k)", False),
        ("torch.min(norm, d)", False),
        ("torch.min(norm, mask)", True),
        ("norm.min()", True),
    ],
)
def test_two_operands_both_have_their_say(at, by_hand, below, size):
    zero = by_hand.fact(zeros=16, min=0.0, max=0.0, absmax=0.0)
    facts = at("div", (by_hand.fact(), zero), (by_hand.fact(nan=1),), **on(f"y = a / {below}", f"a / {below}"))
    assert ("torch.where" in codes(facts)[0]) is not size

"""A number that ranks reduced by the least of them, where what breaks on it needs the largest."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Site
from nandiag.events.site import Around, Reduced, Written


def told(by_hand, call, *, given=None, op="aten.reciprocal.default"):
    line = "            scale = 240 / amax"
    around = Around(written=(Written("amax", (9, 10), (Reduced(10, call),)),))
    site = Site("0", "FakeFp8", op, file="/w/a.py", line=11, column=(20, 30), source=line, around=around)
    given = given or by_hand.fact(shape=(), zeros=1, min=0.0, max=0.0, absmax=0.0)
    look = by_hand.found(9, site=site, inputs=(given,), outputs=(by_hand.fact(posinf=1, shape=()),))
    return analyse(by_hand.run(by_hand.rank(0), by_hand.rank(1, by_hand.loss(9), look))).verdict.suggestions[0]


def test_the_least_of_all_ranks_is_named_with_its_line_where_the_largest_is_likely_meant(by_hand):
    first = told(by_hand, "dist.all_reduce(amax, op=dist.ReduceOp.MIN)")
    assert first.text == (
        "amax was last set in line 10, by the least of all ranks (MIN): where it is to bound what all of them hold, "
        "the largest is meant."
    )
    assert first.code == "dist.all_reduce(amax, op=dist.ReduceOp.MAX)"


@pytest.mark.parametrize("op", ["MAX", "SUM"])
def test_another_operation_is_left_as_it_is(by_hand, op):
    assert "least of all ranks" not in told(by_hand, f"dist.all_reduce(amax, op=dist.ReduceOp.{op})").text

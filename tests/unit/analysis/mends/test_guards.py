"""How small a guard is that keeps a divisor, an argument or what is under a root away from 0."""

import pytest

from nandiag.analysis.causes.mends.script.guards import least, small, under_root


@pytest.mark.parametrize(
    ("absmin", "dtype", "guard"),
    [(None, "float32", "1e-6"), (0.5, "float32", "1e-6"), (2e-8, "float32", "1e-10"), (1e-44, "float32", "1e-30"),
     (2e-8, "float16", "1e-4"), (3.0, "int64", "1")],
)  # fmt: skip
def test_a_guard_of_a_divisor_lies_below_what_was_seen(by_hand, absmin, dtype, guard):
    assert small(by_hand.fact(absmin=absmin, dtype=dtype)) == guard


@pytest.mark.parametrize(
    ("absmin", "absmax", "guard"),
    [(1e-30, 1.0, "1e-12"), (None, 1e-22, "1e-12"), (2e-23, 1e-22, "1e-25"), (1e-44, 1e-20, "1e-37")],
)
def test_a_guard_of_an_argument_is_smaller_only_where_all_that_was_seen_is_small(by_hand, absmin, absmax, guard):
    assert least(by_hand.fact(absmin=absmin, absmax=absmax)) == guard


@pytest.mark.parametrize(
    ("absmin", "dtype", "power"),
    [(None, "float32", -12), (2.0, "float32", -12), (3e-7, "float32", -16), (1e-30, "float32", -36),
     (3e-7, "float16", -6)],
)  # fmt: skip
def test_a_guard_under_a_root_has_a_root_below_what_was_seen(by_hand, absmin, dtype, power):
    assert under_root(by_hand.fact(absmin=absmin, dtype=dtype)) == power

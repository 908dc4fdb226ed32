"""What lies far beyond the batches before: what came seldom and was as far hides nothing, a wide spread is natural."""

import random
import statistics

import pytest

from nandiag.runtime.early.data.sizes import Sizes


def sizes(values):
    known = Sizes()
    for value in values:
        known.add(value)
    return known


def usual(count, seed=0):
    draw = random.Random(seed)  # noqa: S311 - numbers for a test
    return [draw.uniform(0.9, 1.1) for _ in range(count)]


def test_mean_and_deviation_are_those_of_all_logarithms():
    values = [2.0**power for power in range(40)]
    spread = sizes(values).spread()
    powers = range(40)
    assert spread.largest == 2.0**39
    assert spread.score(2.0**50) == pytest.approx((50 - statistics.mean(powers)) / statistics.stdev(powers))


@pytest.mark.parametrize(("earlier", "aside"), [(1, 1), (2, 2), (3, None)])
def test_what_came_seldom_and_was_as_far_is_left_aside(earlier, aside):
    """Of 64 no more than two: what comes more often than that is usual."""
    values = usual(64)
    values[10 : 10 + 10 * earlier : 10] = [6e4] * earlier
    found = sizes(values).without_far(6e4)
    assert (None if found is None else found.aside) == aside
    assert found is None or (found.largest < 1.2 and found.mean == pytest.approx(1, rel=0.1))


def test_of_few_batches_none_is_left_aside():
    assert sizes([*usual(25), 6e4]).without_far(6e4) is None


def test_one_that_is_not_as_far_as_those_is_told_by_what_it_is_far_beyond():
    known = sizes([*usual(64), 6e4])
    assert known.without_far(100.0).largest < 1.2
    assert known.without_far(8.0) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_of_what_is_spread_wide_by_nature_next_to_nothing_is_far_beyond(seed, power):
    draw = random.Random(seed)  # noqa: S311 - numbers for a test
    known, found = Sizes(), 0
    for _ in range(2000):
        size = draw.random() ** -power
        found += known.without_far(size) is not None
        known.add(size)
    assert found <= 2


def test_no_more_is_kept_than_a_few():
    assert len(sizes(range(1, 1000))._largest) == 8

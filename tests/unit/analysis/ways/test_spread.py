"""What followed the origin, and what is a hit of its own."""

import pytest

from nandiag.analysis import analyse


@pytest.mark.parametrize(("loss_at", "spread"), [(4, []), (None, [("gradient", (1,))])])
def test_gradients_of_a_rank_with_a_bad_loss_of_its_own_are_of_that(loss_at, spread, by_hand):
    """Nothing bad had reached its weights: its loss began by itself, and its backward made no more of it."""
    losses = [] if loss_at is None else [by_hand.loss(loss_at)]
    first = by_hand.rank(0, by_hand.loss(3), by_hand.gradient(3), by_hand.found(3))
    told = analyse(by_hand.run(first, by_hand.rank(1, *losses, by_hand.gradient(4)))).verdict
    assert told.origin.ranks == (0,)
    assert [(one.what, one.ranks) for one in told.spread] == spread

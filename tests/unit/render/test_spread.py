"""A way that damage took stands in one line, whatever went bad by it."""

from nandiag.analysis.report import Spread
from nandiag.render.text import spread_lines

WAY = "all_gather in the group of ranks 0-1"


def test_what_came_by_one_way_to_the_same_ranks_in_one_step_stands_in_one_line():
    loss, gradient = Spread((0,), 3, "forward", "loss", WAY), Spread((0,), 3, "backward", "gradient", WAY)
    later = Spread((0,), 4, "forward", "loss", "the bad weights")
    assert spread_lines([loss, gradient, later]) == [
        f"loss and gradients of rank 0 at step 3, through {WAY}",
        "loss of rank 0 at step 4, through the bad weights",
    ]


def test_other_ranks_and_other_ways_have_lines_of_their_own():
    loss = Spread((0,), 3, "forward", "loss")
    others = [Spread((1,), 3, "forward", "loss"), Spread((0,), 3, "backward", "gradient", WAY)]
    assert spread_lines([loss, *others]) == [
        "loss of rank 0 at step 3",
        "loss of rank 1 at step 3",
        f"gradients of rank 0 at step 3, through {WAY}",
    ]


def test_a_buffer_has_its_name_and_three_kinds_are_listed():
    kinds = [Spread((2, 3), 5, None, "loss"), Spread((2, 3), 5, None, "gradient")]
    kinds.append(Spread((2, 3), 5, None, "buffer", names=("norm.mean", "norm.var")))
    assert spread_lines(kinds) == ["loss, gradients and buffer norm.mean, norm.var of ranks 2-3 at step 5"]

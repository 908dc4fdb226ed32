"""The reduction that is to take the largest is the mend, and no bound that would hide what is wrong."""

import pytest

from nandiag.analysis.causes.facts import Cause
from nandiag.analysis.causes.summed_shift import _largest, told
from nandiag.analysis.report import Suggestion
from nandiag.events.site import Around, Reduced


class _Facts:
    def __init__(self, *shifts):
        self.around = Around(shifts=shifts)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dist.all_reduce(top)", "dist.all_reduce(top, op=dist.ReduceOp.MAX)  # line 4"),
        ("all_reduce(top, group=g)", "all_reduce(top, op=ReduceOp.MAX, group=g)  # line 4"),
        ("dist.all_reduce(top, dist.ReduceOp.SUM)", "dist.all_reduce(top, op=dist.ReduceOp.MAX)  # line 4"),
        ("dist.all_reduce(top, op=ReduceOp.SUM)", "dist.all_reduce(top, op=ReduceOp.MAX)  # line 4"),
    ],
)
def test_the_call_is_given_the_largest(text, code):
    assert _largest(Reduced(4, text)) == code


def test_it_stands_in_the_place_of_a_bound():
    cause = Cause("log_of_zero", ("log(0) is -inf",), (Suggestion("Keep it away.", "x.clamp_min(1e-12).log()"),))
    (one,) = told(_Facts(Reduced(4, "dist.all_reduce(top)")), cause).suggestions
    assert one.text.startswith("Line 4 adds up")
    assert told(_Facts(), cause) is None

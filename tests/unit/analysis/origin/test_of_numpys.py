"""A line of numpy's is told by what numpy says of it: what came of it in torch may be something else."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Looked, Site
from nandiag.render import terminal


def _report(by_hand, said, **came):
    look = Looked(
        "found", "tape", 8, phase="data", source="op", outputs=(by_hand.fact(first_bad=(0, 3), **came),),
        site=Site(file="dqn/replay.py", line=30, column=(4, 11), source="w = p ** -b", function="sample"),
        facts={"numpy": said, "heard": True, "number": False}, reason="it was not looked at",
    )  # fmt: skip
    return analyse(by_hand.run(by_hand.rank(0, look, by_hand.gradient(8, "0.weight"), world=1), world=1))


@pytest.mark.parametrize(
    ("said", "came", "kind", "shown"),
    [
        ("divide by zero encountered in power", {"nan": 1}, "nan", "NaN"),  # no infinity was seen
        ("divide by zero encountered in log", {"nan": 1, "neginf": 1}, "inf", "-Inf"),
        ("divide by zero encountered in power", {"posinf": 1}, "inf", "+Inf"),
        ("divide by zero encountered in log", {"posinf": 1, "neginf": 1}, "inf", "-Inf"),
        ("invalid value encountered in divide", {"nan": 1, "posinf": 2}, "nan", "NaN"),
        ("invalid value encountered in cast", {"posinf": 2}, "inf", "+Inf"),
    ],
)
def test_what_is_born_is_what_numpy_made_and_what_came_of_it_is_called_so(by_hand, said, came, kind, shown):
    report = _report(by_hand, said, **came)
    assert report.verdict.origin.kind == kind
    assert report.verdict.summary.startswith(f"{shown} born on rank 0 at step 8")
    text = "\n".join(line.plain for line in terminal.lines(report, terminal.Place("RUN"), 100))
    assert "= came into torch: float32" in text
    assert "output" not in text
    assert "The first non-finite value of what came into torch is at [0, 3]." in text


@pytest.mark.parametrize(
    ("phase", "said"), [("optimizer", "came of it in the update"), ("loss", "came of it in torch")]
)
def test_what_came_of_a_number_that_numpy_made_is_called_so(by_hand, phase, said):
    """A learning rate, say: it is the weights that show it."""
    bad, facts = by_hand.fact(nan=16), {"numpy": "invalid value encountered in power", "number": True}
    look = Looked("found", "replay", 8, phase=phase, source="op", outputs=(bad,), facts=facts)
    report = analyse(by_hand.run(by_hand.rank(0, look, by_hand.gradient(8, "0.weight"), world=1), world=1))
    assert report.verdict.origin.outputs_are == said


def test_the_output_of_an_op_is_called_so(by_hand):
    look = Looked("found", "replay", 8, phase="forward", source="op", outputs=(by_hand.fact(nan=1, first_bad=(0, 3)),))
    report = analyse(by_hand.run(by_hand.rank(0, look, by_hand.gradient(8, "0.weight"), world=1), world=1))
    assert report.verdict.origin.outputs_are == "output"

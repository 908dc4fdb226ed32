"""How far updates can have led the weights: where that is next to nothing, what grew did so within a step (reader)."""

from __future__ import annotations

from nandiag.analysis.causes.course import Course
from nandiag.analysis.report import Suggestion
from nandiag.events import words

# Each of their updates moves a weight by about the learning rate at most, however large the gradient is.
_BY_DIRECTION = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax"})
# Of weights that begin around a tenth to 1, and growth that so short a way does not make.
_SHORT, _BEYOND_DOUBT = 0.05, 1e6

BOUND = Suggestion(
    "Limit what a loop within the step hands on: let it have fewer passes (a shorter horizon, until that is stable), "
    "bound the state by a clamp or tanh, or detach it every few passes. Look at the batch as well."
)


def too_short(kind: str | None, course: Course) -> str | None:
    """Return a sentence where the updates so far moved no weight far enough to make anything grow as it did."""
    rates = [row.lr for row in course.rows]
    way = sum(rate for rate in rates if rate is not None)
    if kind not in _BY_DIRECTION or None in rates or not course.whole or way > _SHORT:
        return None
    if max(course.growth, course.loss_growth) < _BEYOND_DOUBT:
        return None
    return (
        f"{words.count(len(rates), 'update')} of {kind} at such a learning rate move a weight by about "
        f"{words.number(way)} at most: what grew so did it within a step, as from pass to pass of a loop."
    )

"""The peak of a learning rate that a schedule leads too high: how high it may go, and its own line bounded (reader)."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from nandiag.analysis.causes.course import Course
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words


def peak(course: Course, low: float) -> tuple[str, float]:
    """Say how high the rate may go: what the steps held is a peak, what they only passed on the way up is none."""
    number = words.number(low)
    if course.held(low):
        return f"Lower the peak learning rate: up to {number} nothing grew.", low
    tenth = f"{words.number(low / 10)} is a first try"
    if course.is_all_at(low):
        text = f"Lower the peak learning rate: nothing grew at {number}, but in few steps; where it does, {tenth}."
        return text, low / 10
    passed = f"Up to {number} nothing grew, but the rate only passed there on its way up: it may be too high to keep."
    return f"Lower the peak learning rate: {tenth}. {passed}", low / 10


def swept(course: Course) -> tuple[Suggestion, ...]:
    """Say how to let a search for the highest rate run to its end, where the rate rose as in one."""
    return (Suggestion(_SEARCH, "nandiag run --on-anomaly continue"),) if course.is_swept else ()


_SEARCH = (
    "If this is a search for the highest rate (a learning rate finder), which puts the weights back behind it, it is "
    "meant to come here: let it run to its end."
)


def restored(facts: Facts) -> tuple[Suggestion, ...]:
    """Say how to let the script put weights back by itself, where its text shows that it does."""
    lines = () if facts.compared is None else facts.compared.restores_at
    where = (
        f"The script puts kept weights back by itself, at {words.few(lines)}: if that is to mend this, let it go on."
    )
    return (Suggestion(where, "nandiag run --on-anomaly continue"),) if lines else ()


def where_it_rises(course: Course, rate: str, *, lines: bool) -> str:
    """Say which ``rate`` to try first where a schedule raised it, and nothing of the run is known to have gone well.

    Without ``lines`` of the script's that set it, a library's schedule does.
    """
    if not lines:
        return (
            f"Lower where what raises the learning rate ends (a schedule's peak, or end value): {rate} is a first try."
        )
    begins_below = course.rate_before is not None and course.rate_before < float(rate)
    where = "the peak of the learning rate" if begins_below else "the learning rate where it begins, and its peak"
    return f"Lower {where}; {rate} is a first try."


def set_at(lines: Sequence[str], what: str = "it") -> str:
    """Return where the script sets ``what``, as a sentence: its line on a line of its own reads as a mend."""
    places = [str(one).partition(": ") for one in lines]
    if len(places) == 1 and len(places[0][2]) <= _SHORT:
        return f"The script sets {what} at {places[0][0]}, by {_alone(' '.join(places[0][2].split()))}."
    return f"The script sets {what} at {words.few([place for place, _, _ in places])}."


def _alone(text: str) -> str:
    """Return the assignment alone of ``for g in groups: g["lr"] = lr``, which stands in one line with its loop."""
    line = parsing.statement(text)
    while isinstance(line, ast.For | ast.If | ast.With) and len(line.body) == 1:
        line = line.body[0]
    own = None if line is None else ast.get_source_segment(text, line)
    return own if own is not None and isinstance(line, ast.Assign | ast.AugAssign) else text


_SHORT = 90
# Optimizers whose update is the gradient, or the sum of those so far, times the learning rate.
BY_THE_NORM = frozenset({"SGD", "ASGD"})
_WITHOUT_MOMENTUM = frozenset({"ASGD"})
_ADAMS, _BY_DIRECTION = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"}), 1e-3


def first_try(facts: Facts, name: str, course: Course, high: float) -> tuple[str, str]:
    """Return the rate to begin with where none of the run went well, and the same in words.

    It is that of another rank that is lower, and not too high as well by how the gradients grew, else a tenth of the
    rate, or less where that would be too high all the same. Of plain gradients the step that brings the loss to 0 is
    the highest that makes sense; of Adam's kind a rate is the way that each weight goes in one update. Where ranks
    share their gradients, the mean of their weights moves by the mean of the rates.
    """
    ranks = facts.rates
    low, mean = min(ranks.values(), default=high), sum(ranks.values()) / max(len(ranks), 1)
    if 0 < low <= high / 2 and low <= highest(facts, course, mean if facts.shared else high):
        told = words.ranks([rank for rank, rate in ranks.items() if rate == low])
        return words.number(low), f"{words.number(low)}, as on {told},"
    most = (course.polyak or high) if name in BY_THE_NORM else _BY_DIRECTION if name in _ADAMS else high
    rate = min(high / 10, most)
    return f"{rate:.1g}", "a tenth of it" if rate == high / 10 else f"{rate:.1g}"


def highest(facts: Facts, course: Course, rate: float) -> float:
    """Return the highest rate at which gradients that grew as those of ``course``, at ``rate``, do not grow.

    Along a curvature ``c`` each update by plain gradients leaves ``1 - rate * c`` times what is to be made 0: it grows
    where ``rate * c`` is above 2, and by ``rate * c - 1`` times then. Infinite where the updates are not known to be
    such: with momentum it grows from another rate on, and by another factor.
    """
    return 2.0 * rate / (1.0 + course.factor) if course.factor > 1.0 and _is_plain(facts) else math.inf


def _is_plain(facts: Facts) -> bool:
    name = facts.harm.optimizer if facts.harm is not None else None
    known = () if facts.compared is None else facts.compared.settings
    momenta = [max(one.now, one.most or 0.0) for one in known if one.name == "momentum"]
    return name in BY_THE_NORM and (bool(momenta) or name in _WITHOUT_MOMENTUM) and not any(momenta)


def bounded(lines: Sequence[str], most: float) -> str | None:
    """Return the one line that sets the rate (``g["lr"] = base * t``), as ``file:number: text``, with a bound."""
    place, _, text = lines[0].partition(": ") if len(lines) == 1 else ("", "", "")
    line = parsing.statement(text.strip())
    target = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
    key = target.slice if isinstance(target, ast.Subscript) else None
    if not isinstance(line, ast.Assign) or not isinstance(key, ast.Constant) or key.value != "lr":
        return None
    written = text.strip().partition("=")[0].rstrip()
    return f"{written} = min({ast.unparse(line.value)}, {words.number(most)})  # {place}"

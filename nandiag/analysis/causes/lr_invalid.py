"""A learning rate that is no usable number (reader side)."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

from nandiag.analysis.causes.division_by_zero import is_called
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.causes.mends.steps import own_rates, rates
from nandiag.analysis.causes.optimizer_setting import bad_setting
from nandiag.analysis.causes.unknown import LIVE
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import History, words

EXPLAIN = Explanation(
    slug="lr_invalid",
    what="The learning rate was NaN, infinite or negative at some step. A schedule that runs past its end, divides "
    "by a number of warm-up steps of 0, or takes 0 to a negative power makes such a rate.",
    looks=(
        "error[lr_invalid]: Inf in parameter head.weight on ranks 0-1 after the update of step 7",
        "the learning rate was +inf at step 7",
    ),
    fix=(
        Suggestion(
            "Print the schedule over all the steps that it will see, before training.",
            "rates = [schedule(step) for step in range(total_steps + 1)]\n"
            "assert all(0 <= rate < float('inf') for rate in rates)",
        ),
        Suggestion(
            "Keep it within its ends.",
            "LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total_steps))",
        ),
        Suggestion(
            "Check that total_steps counts what the scheduler is stepped by: batches or epochs, of all workers or one.",
        ),
    ),
    pages=(
        "optim.html",
        "generated/torch.optim.lr_scheduler.LambdaLR.html",
    ),
)

_CHECK = Suggestion("Check the learning rate's schedule at this step: a division by zero, or a step beyond its end.")


def explain(facts: Facts) -> Cause | None:
    """Name a learning rate that was NaN, infinite or negative at or before the step of the origin."""
    found = None if facts.history is None else _first_bad(facts.history, facts.origin.step)
    if found is None:
        return _by_number(facts) or own_rates.explain(facts)
    step, value = found
    text = f"the learning rate was {words.number(value)} at step {step}"
    # Where a line made the number it has a mend of its own, but beyond a schedule's end that only stops the learning.
    made = facts.extra.get("number") is True and not str(facts.extra.get("numpy", "")).startswith("invalid")
    return Cause("lr_invalid", (text,), (_check(facts), *_live(facts)), story=True, follows=made)


def _live(facts: Facts) -> tuple[Suggestion, ...]:
    """Where no line shows that made the number it may show as it is made."""
    watched = facts.look is None or facts.look.method == "watch"
    return () if watched or not is_called(facts) else (LIVE,)


def _check(facts: Facts) -> Suggestion:
    """Return what to check, and where the script sets the rate, where its text shows few such lines."""
    lines = facts.extra.get("rate_set_at") or (() if facts.compared is None else facts.compared.rate_set_at)
    if not isinstance(lines, list | tuple) or not lines:
        return _CHECK
    bounded = _ended(facts, lines) or _bounded(facts, lines)
    if bounded is not None:
        return bounded
    return Suggestion(f"{_CHECK.text} {rates.set_at(list(map(str, lines)), 'the rate')}")


def _ended(facts: Facts, lines: Sequence[object]) -> Suggestion | None:
    """Return the one line that makes the schedule of a lambda (``LambdaLR(opt, lambda s: 1 - s / n)``) with 0 as end.

    Where the rate was infinite 0 is no end of it, and of several groups there are several lambdas.
    """
    place, _, line = str(lines[0]).partition(": ")
    found = None if facts.history is None else _first_bad(facts.history, facts.origin.step)
    lambdas = [node for node in fitting.nodes_of(line) if isinstance(node, ast.Lambda)] if line.isascii() else []
    if len(lines) != 1 or len(lambdas) != 1 or found is None or found[1] == math.inf:
        return None
    body = lambdas[0].body
    first, last = body.col_offset, body.end_col_offset or 0
    code = f"{line[:first]}max(0.0, {line[first:last]}){line[last:]}"
    powers = [one for one in ast.walk(body) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Pow)]
    if len(powers) == 1 and isinstance(powers[0].left, ast.BinOp) and (powers[0] is body or math.isnan(found[1])):
        # What is raised is what is below zero there; the power of it is no number that a bound could be put to.
        code = fitting.put(line, powers[0].left, lambda text: f"max(0.0, {fitting.unbracketed(text)})")
    text = f"{_CHECK.text[:-1]}. {place} makes it: give it as many steps as the run has, or let it end at 0, behind "
    return Suggestion(f"{text}which the rate is 0: nothing is learned from there on.", code)


def _bounded(facts: Facts, lines: Sequence[object]) -> Suggestion | None:
    """Return the one assignment that sets the rate, bounded by the most that it was; of NaN it is 0.

    Python's min and max give their first word where the other is NaN: behind the end of a schedule that is to be 0.
    """
    place, _, line = str(lines[0]).partition(": ")
    most = _most(facts)
    found = _ASSIGNED.fullmatch(line) if len(lines) == 1 and most is not None else None
    if found is None or not fitting.nodes_of(line):
        return None
    history = facts.history
    bad = None if history is None else _first_bad(history, facts.origin.step)
    if bad is not None and math.isnan(bad[1]):
        measured = _measured(found[2])
        if measured is not None:
            return Suggestion(f"{place} sets the rate by what {measured} holds: look at what makes that.")
        if str(facts.extra.get("numpy", "")).startswith("divide by zero"):
            return Suggestion(f"{place} sets the rate by what a division by zero made: mend that division.")
        text = f"{_CHECK.text[:-1]}. {place} sets it: let it be 0 where it is no number, as behind the last step."
        return Suggestion(text, f"{found[1]} = max(0.0, {found[2]})")
    text = f"{_CHECK.text[:-1]}. {place} sets it: keep it below the most that it was before."
    return Suggestion(text, f"{found[1]} = min({most:.4g}, {found[2]})")


def _measured(text: str) -> str | None:
    """Return the tensor that a rate is read of: where that stays NaN a bound would make the rate 0 for good."""
    calls = [one.func for one in fitting.nodes_of(text) if isinstance(one, ast.Call)]
    read = (one.value for one in calls if isinstance(one, ast.Attribute) and one.attr in {"item", "tolist"})
    return next(map(ast.unparse, read), None)


_ASSIGNED = re.compile(r"([\w.]+\[(?:\"lr\"|'lr')\]) = (?!.*#)(.+)")


def _most(facts: Facts) -> float | None:
    """Return the highest rate of the steps before it was NaN or infinite; ``None`` where it was something else."""
    found = None if facts.history is None else _first_bad(facts.history, facts.origin.step)
    if facts.history is None or found is None or found[1] <= 0:
        return None
    before = zip(facts.history.step, facts.history.lr, strict=False)
    return max((lr for at, lr in before if at < found[0] and lr is not None and 0 < lr < math.inf), default=None)


def _first_bad(history: History, step: int) -> tuple[int, float] | None:
    pairs = zip(history.step, history.lr, strict=False)
    return next(((at, lr) for at, lr in pairs if at <= step and lr is not None and not (0 <= lr < math.inf)), None)


# What these lay is no size of a step.
_FILLS = frozenset({"full", "full_like", "new_full", "fill", "masked_fill", "scalar_tensor"})


def _by_number(facts: Facts) -> Cause | None:
    """An update that was given a bad number by an optimizer whose learning rate the history does not show."""
    if not facts.in_update or not facts.finite_inputs or facts.op in _FILLS:
        return None
    # What multiplies a gradient where it lies need be no rate.
    names = ("value", "alpha") if facts.extra.get("gradients_unknown") is True else ("value", "alpha", "arg1")
    sizes = [value for name in names if (value := facts.number(name)) is not None]
    bad = next((value for value in sizes if not math.isfinite(value)), None)
    if bad is None or bad_setting(facts) is not None:
        return None
    text = f"the step size that {facts.op} was given is {words.number(bad)}"
    return Cause("lr_invalid", (text,), (_check(facts), *_live(facts)), LIKELY, story=True)

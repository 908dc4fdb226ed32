"""Exponentials that vanish, or overflow, since their shift is the sum of the ranks' largest (reader side)."""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import parsing
from nandiag.analysis.report import Suggestion
from nandiag.events.site import Reduced

_SLUGS = frozenset({"log_of_zero", "division_by_zero", "overflow"})
_TEXT = (
    "Line {} adds up what each rank found to be its largest exponent, and the sum is subtracted: the largest of all "
    "ranks is meant."
)


def told(facts: Facts, cause: Cause) -> Cause | None:
    """Return the cause with the reduction that is to take the largest, in the place of a bound that would hide it.

    ``None`` where no shift is summed over ranks.
    """
    found = facts.around.shifts if facts.around is not None else ()
    if not found or cause.slug not in _SLUGS:
        return None
    return replace(cause, suggestions=tuple(Suggestion(_TEXT.format(one.line), _largest(one)) for one in found[:1]))


def _largest(one: Reduced) -> str | None:
    """Return the call with the largest for its operation."""
    call = parsing.expression(one.text)
    if not isinstance(call, ast.Call):
        return None
    home = ast.unparse(call.func.value) + "." if isinstance(call.func, ast.Attribute) else ""
    given = next((word.value for word in call.keywords if word.arg == "op"), None)
    given = given if given is not None or len(call.args) < 2 else call.args[1]
    operation = f"{home}ReduceOp.MAX" if given is None else ast.unparse(given).replace("SUM", "MAX")
    words = [word for word in call.keywords if word.arg != "op"]
    words.insert(0, ast.keyword("op", ast.parse(operation, mode="eval").body))
    return f"{ast.unparse(ast.Call(call.func, [*call.args[:1], *call.args[2:]], words))}  # line {one.line}"

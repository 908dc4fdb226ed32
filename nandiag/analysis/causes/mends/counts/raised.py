"""A count that is divided by before it is raised, and is 0 the first time (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import parsing, quotients
from nandiag.analysis.report import Suggestion

_BEFORE = (
    "{} is 0 the first time, for line {} adds 1 to it behind this one: what comes in here is not counted yet. Raise it "
    "before this line, and not there. Or leave that line, and divide by one more."
)


def behind(facts: Facts) -> Suggestion | None:
    """Return the line that divides by a count as it is once that is raised; a floor of 1 would count two as one.

    Of 0/0 nothing came in yet, and the count is right as it is.
    """
    if not any(one.posinf or one.neginf for one in facts.origin.outputs):
        return None
    text = quotients.below(facts.origin) or ""
    node, around = parsing.expression(text), facts.around
    if around is None or not isinstance(node, ast.Name | ast.Attribute):
        return None
    known = next((one for one in around.written if one.name == text), None)
    if known is None or known.raised is None or not known.counts:
        return None
    code = quotients.divisor(facts.origin, lambda inner: f"({inner} + 1)")
    return None if code is None else Suggestion(_BEFORE.format(text, known.raised), code)

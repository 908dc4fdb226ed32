"""A temperature of 0: scores are divided by it, and the softmax of the quotient is taken (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, quotients
from nandiag.analysis.report import Suggestion

_LEAST = "1e-3"
_NAMED = re.compile(r"(?:^|[._])(?:temp|temperature|tau)(?:$|[._\d])", re.IGNORECASE)
_TAKEN = ("softmax", "log_softmax", "sigmoid", "logsumexp", "gumbel_softmax")


def bounded(facts: Facts) -> Suggestion | None:
    """Return the user's line with the temperature kept from 0 where it divides, ``None`` where it is none."""
    text = quotients.below(facts.origin)
    if text is None or not (_NAMED.search(text) or _is_taken(facts)):
        return None
    guard = "max({}, " + _LEAST + ")" if "arg1" in facts.extra else "{}.clamp_min(" + _LEAST + ")"
    code = quotients.divisor(facts.origin, guard.format)
    told = f"Keep {text} above 0 where it divides scores, or take the largest of them (argmax) where it is 0."
    return None if code is None else Suggestion(told, code)


def _is_taken(facts: Facts) -> bool:
    """Whether the line takes the softmax, or the like, of the quotient as it stands."""
    found = fitting.parsed(facts.origin)
    if found is None:
        return False
    own, nodes = ast.dump(found[1]), fitting.nodes_of(facts.origin.source or "")
    given = (fitting.target(node, op) for node in nodes if isinstance(node, ast.Call) for op in _TAKEN)
    return any(one is not None and ast.dump(one) == own for one in given)

"""Functions of torch's that divide by what an eps of their own keeps above zero, where that is 0 (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, widening
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_ROUNDED = "Its eps is itself 0 in float16: have it computed in float32."
_NONE = "Its eps is 0: give it one that is not."


def mended(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """Say how the underlined call of such a function divides by zero no more; nothing where it is none."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call):
        return ()
    name = ast.unparse(found[1].func).rpartition(".")[2]
    known = widening.WITH_EPS.get(name)
    if known is None:
        return ()
    given = next((word.value for word in found[1].keywords if word.arg == "eps"), None)
    if isinstance(given, ast.Constant) and given.value == 0:
        first, last = given.col_offset, given.end_col_offset or 0
        line = fitting.whole(facts.origin, f"{found[0][:first]}{known.eps}{found[0][last:]}")
        return (Suggestion(_NONE, line),)
    if dtype_of(divisor) != "float16":
        return ()
    wide = widening.operands(facts.origin)
    return (Suggestion(_ROUNDED, wide or f"torch.nn.functional.{name}(x.float(), ...)"),)

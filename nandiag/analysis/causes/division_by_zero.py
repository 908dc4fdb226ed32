"""A division whose divisor holds zeros (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

DIVISIONS = frozenset({"div", "true_divide", "divide", "remainder", "fmod"})
RECIPROCALS = frozenset({"reciprocal", "rsqrt"})
_FIX = (Suggestion("Keep the divisor away from zero.", "a / b.clamp_min(1e-6)"),)
NODES = ("Div", "Reciprocal")


def explain(facts: Facts) -> Cause | None:
    """Name the zero divisor of a division, in forward or in backward: a tensor, a number, or 0 to a negative power."""
    if facts.op in DIVISIONS and facts.finite_inputs and facts.extra.get("arg1") in (0, 0.0):
        return Cause("division_by_zero", (f"the divisor of {facts.op} is the number 0",), _FIX)
    if (
        facts.op == "pow"
        and facts.finite_inputs
        and _negative(facts.extra.get("arg1"))
        and facts.origin.inputs[0].zeros
    ):
        text = (
            f"the base of pow holds {words.count(facts.origin.inputs[0].zeros, 'zero')}; 0 to a negative power is Inf"
        )
        return Cause("division_by_zero", (text,), _FIX)
    divisor = _divisor(facts)
    if divisor is None or not divisor.zeros or not facts.finite_inputs:
        return None
    zeros = "0" if divisor.numel == 1 else f"{words.count(divisor.zeros, 'zero')} in {divisor.numel:,} values"
    result = "0/0 is NaN" if any(fact.nan for fact in facts.origin.outputs) else "x/0 is Inf"
    small = " A small constant like 1e-8 is itself 0 in float16." if dtype_of(divisor) == "float16" else ""
    return Cause(
        slug="division_by_zero",
        evidence=(f"the divisor of {facts.op} holds {zeros}; {result}",),
        suggestions=(Suggestion("Keep the divisor away from zero." + small, "a / b.clamp_min(1e-6)"),),
    )


def _negative(word: object) -> bool:
    return isinstance(word, int | float) and word < 0


def _divisor(facts: Facts) -> TensorFact | None:
    inputs, node = facts.origin.inputs, facts.origin.node
    if node is not None and not node.startswith(NODES):
        return None  # the division is part of another function's gradient, which has a cause of its own
    if facts.op in DIVISIONS and len(inputs) > 1:
        return inputs[1]
    return inputs[0] if facts.op in RECIPROCALS and inputs else None

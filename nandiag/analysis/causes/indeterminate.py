"""Arithmetic of infinities that has no value, and gives NaN: 0 times inf, inf less inf, inf over inf (reader side).

Where an infinity was computed, that is the origin; what is left here is one that the script wrote, a mask as a rule.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes import bounding, fitting
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_FAR = {"float16": "6e4"}
_SUMS = {"sub": "less", "rsub": "less", "add": "and"}
_ENTROPY = Suggestion(
    "If it is an entropy: let torch take it, which leaves out what cannot happen.",
    "torch.distributions.Categorical(logits=logits).entropy()",
)


def explain(facts: Facts) -> Cause | None:
    """Name the two that met where infinities went into a product, a sum or a quotient, and NaN came out."""
    given = facts.origin.inputs
    if facts.node is not None or facts.source != "op" or not facts.outputs_nan or len(given) != 2:
        return None
    if any(fact.nan for fact in given) or not any(map(_infinities, given)):
        return None
    met = _met(facts.op or "", given)
    return None if met is None else Cause("domain_error", (met,), _advice(facts), LIKELY)


def _infinities(fact: TensorFact) -> int:
    return fact.posinf + fact.neginf


def _met(op: str, given: tuple[TensorFact, ...]) -> str | None:
    """Return what met what, in words; None where that does not make NaN."""
    endless = words.bad_kind([fact for fact in given if _infinities(fact)])
    zeros = sum(fact.zeros for fact in given if not _infinities(fact))
    if op == "mul" and zeros:
        return f"0 times {endless} is NaN: {words.count(zeros, 'zero')} on the other side"
    if op in _SUMS and all(map(_infinities, given)):
        return f"{endless} {_SUMS[op]} {endless} in the same place is NaN"
    return f"{endless} over {endless} is NaN" if op == "div" and all(map(_infinities, given)) else None


def _advice(facts: Facts) -> tuple[Suggestion, ...]:
    fitted = _finite(facts)
    text = "Put a large finite number in the place of the infinity, which 0 makes 0 of."
    if facts.op != "mul":
        text = "Put large finite numbers in the place of the infinities."
    first = Suggestion(text, fitted or "x.clamp(-1e30, 1e30)")
    return (first, _ENTROPY) if _is_entropy(facts) else (first,)


def _finite(facts: Facts) -> str | None:
    """Return the user's line with what is infinite bounded, where both sides can be told from its text."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.BinOp) or facts.op == "rsub":
        return None
    sides = zip((found[1].left, found[1].right), facts.origin.inputs, strict=True)
    bounds = [(node, _bound(fact)) for node, fact in sides if _infinities(fact)]
    return bounding.guarded(facts.origin, bounds)


def _bound(fact: TensorFact) -> str:
    far = _FAR.get(dtype_of(fact), "1e30")
    if fact.posinf and fact.neginf:
        return f".clamp(-{far}, {far})"
    return f".clamp_max({far})" if fact.posinf else f".clamp_min(-{far})"


def _is_entropy(facts: Facts) -> bool:
    """Whether a logarithm and its exponential are multiplied, by the names of what is underlined."""
    shown = (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]
    return facts.op == "mul" and "exp" in shown and any(fact.neginf for fact in facts.origin.inputs)

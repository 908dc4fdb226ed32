"""A softmax over a row that is -inf everywhere: every position was masked (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.report import Suggestion

SOFTMAX = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"})
ATTENTION = "scaled_dot_product"


def explain(facts: Facts) -> Cause | None:
    """Name a fully masked row: softmax gives NaN from -inf alone only where a whole row is -inf."""
    inputs, op = facts.origin.inputs, facts.op or ""
    masked = sum(fact.neginf for fact in inputs)
    clean = not any(fact.nan or fact.posinf for fact in inputs)
    attention = op.lstrip("_").startswith(ATTENTION)
    if not (masked and clean and any(fact.nan for fact in facts.origin.outputs)) or not (op in SOFTMAX or attention):
        return None
    return Cause(
        slug="attention_fully_masked",
        evidence=(f"a whole row of the input of {op} is -inf; its softmax is 0/0",),
        suggestions=(
            Suggestion(
                "Leave at least one position of each row unmasked, or mask with a large finite number.",
                "mask = mask.masked_fill(mask.all(-1, keepdim=True), False)",
            ),
        ),
        strength=LIKELY if attention else PROVEN,
    )

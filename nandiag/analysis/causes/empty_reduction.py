"""The mean of nothing (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

MEANS = frozenset({"mean", "var", "std", "var_mean", "std_mean", "nanmean", "median"})


def explain(facts: Facts) -> Cause | None:
    """Name a mean, or the like, over a tensor without elements."""
    if facts.op not in MEANS or not facts.origin.inputs or facts.origin.inputs[0].numel:
        return None
    return Cause(
        slug="empty_reduction",
        evidence=(f"the input of {facts.op} has no elements; the {facts.op} of nothing is NaN",),
        suggestions=(Suggestion("Divide a sum by a count that is at least 1.", "x.sum() / max(x.numel(), 1)"),),
    )

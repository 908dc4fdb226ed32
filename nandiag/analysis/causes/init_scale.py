"""Numbers that leave the dtype in the very first step, with weights as they were initialised (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import POSSIBLE, Cause, Facts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.report import Suggestion


def explain(facts: Facts) -> Cause | None:
    """Point at the initialisation, and the scale of the inputs, where step 0 overflows in a module."""
    if facts.origin.step or facts.origin.global_step or facts.origin.module is None or not overflows(facts):
        return None
    return Cause(
        slug="init_scale",
        evidence=("It is the first step: the weights are as they were initialised, or loaded.",),
        suggestions=(
            Suggestion(
                "Check the scale of the initialisation and of the inputs.", "x = (x - x.mean()) / (x.std() + 1e-6)"
            ),
        ),
        strength=POSSIBLE,
        story=True,
    )

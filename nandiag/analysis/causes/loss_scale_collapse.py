"""GradScaler that skips and skips: when its skips are a collapse and no longer its normal search (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import Skipped, words

# From its default of 65536 the scale is below 1 after 17 halvings; a search that ends does so sooner.
MANY_IN_A_ROW = 20
LOWEST_SCALE = 1.0


def collapsed(skip: Skipped) -> bool:
    """Whether this skip shows a collapse: a scale below 1, or too many skips in a row."""
    if skip.by != "scaler":
        return False
    return skip.in_a_row >= MANY_IN_A_ROW or (skip.scale is not None and skip.scale < LOWEST_SCALE)


def explain(facts: Facts) -> Cause | None:
    """Name the collapse where skipped steps are all that was seen."""
    if facts.basis != "scale" or facts.skip is None:
        return None
    scale = "" if facts.skip.scale is None else f"; the scale is {words.number(facts.skip.scale)}"
    return Cause(
        slug="loss_scale_collapse",
        evidence=(
            f"GradScaler left out {words.count(facts.skip.in_a_row, 'step')} in a row{scale}",
            "A smaller scale did not make the gradients finite: they are not finite by themselves.",
        ),
        suggestions=(Suggestion("Look for an overflow in float16 in forward, or use bfloat16 without a scaler."),),
        story=True,
    )

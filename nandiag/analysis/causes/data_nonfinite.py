"""A batch that was bad before the model saw it (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion


def explain(facts: Facts) -> Cause | None:
    """Name the input that came from outside with non-finite values in it."""
    if facts.source != "input":
        return None
    return Cause(
        slug="data_nonfinite",
        evidence=("The values were bad before any module of the model saw them.",),
        suggestions=(
            Suggestion(
                "Check this sample in the dataset, and drop or repair such samples while loading.",
                "assert torch.isfinite(x).all(), index",
            ),
        ),
        story=True,
    )

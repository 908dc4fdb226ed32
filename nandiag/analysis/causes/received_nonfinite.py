"""Damage that came from another rank, which itself could not be looked at (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="received_nonfinite",
    what="The ranks that could run the step again found it finite: the damage came to them from a rank that could "
    "not be looked at, through the exchange of gradients or weights.",
    fix=(
        Suggestion(
            "Look at the rank that the report names: its data, its host, its device.",
        ),
        Suggestion(
            "Run again with the same seed; where the same rank shows it with other data, suspect the machine.",
        ),
    ),
    pages=(
        "distributed.html",
        "notes/ddp.html",
    ),
)


def explain(facts: Facts) -> Cause | None:
    """Name the damage as received where all ranks that looked were clean and others could not look."""
    if facts.basis != "gradient" or not facts.received or not facts.known:
        return None
    who = words.ranks(facts.received)
    return Cause(
        slug="received_nonfinite",
        evidence=(f"{who} ran the step again alone and came out finite: the damage came from elsewhere",),
        suggestions=(
            Suggestion(f"Look at {words.ranks(facts.origin.ranks)}: its data, host and device."),
            Suggestion("To see there what happens as it happens, have every op watched.", "nandiag run --level op"),
        ),
        strength=LIKELY,
        story=True,
    )

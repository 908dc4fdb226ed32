"""Ranks that did not run the step again, where its gradients went bad in their exchange (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.origin import Claim
from nandiag.analysis.timeline import Timeline
from nandiag.events import words


def silent(claim: Claim, timeline: Timeline) -> tuple[int, ...]:
    """Return the ranks that were not looked at and showed no harm: what they put into the exchange nobody knows.

    One that asks by itself whether its gradients are finite, before the exchange, leaves out its update.
    """
    at = {one.rank for one in timeline.harms if (one.attempt, one.event.step) == (claim.attempt, claim.step)}
    return tuple(rank for rank in claim.unseen if rank not in at)


def unlooked(claim: Claim, timeline: Timeline) -> Iterable[str]:
    """Yield of which ranks it is not known whether what they put into the exchange was finite."""
    quiet = silent(claim, timeline)
    harmed = set(claim.unseen) - set(quiet)
    if quiet:
        of, who = ("it", "it") if len(quiet) == 1 else ("them", "they")
        told = f"no update of {of} was seen at that step, and what {who} put into the exchange may have been bad"
        yield f"{words.ranks(quiet).capitalize()} {_was(quiet)} not looked at: {told} already."
    if harmed:
        who = "it" if len(harmed) == 1 else "they"
        told = f"{who} may have put bad values into the exchange {'itself' if who == 'it' else 'themselves'}"
        yield f"{words.ranks(harmed).capitalize()} {_was(harmed)} not looked at: {told}."


def _was(ranks: Iterable[int]) -> str:
    return "was" if len(tuple(ranks)) == 1 else "were"

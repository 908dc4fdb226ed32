"""Ranks that take the same gradients at learning rates of their own: their weights drift apart (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_RAN_AWAY = frozenset({"lr_divergence", "gradient_explosion"})


def fastest(rates: dict[int, float]) -> tuple[int, ...]:
    """Return the ranks with the highest learning rate, where the ranks differ in it."""
    high = max(rates.values(), default=0.0)
    return tuple(sorted(rank for rank, rate in rates.items() if rate == high)) if len(set(rates.values())) > 1 else ()


def by_rates(facts: Facts, found: Cause | None) -> Cause | None:
    """Return ``found`` as what the one rate did that is too high, where the ranks share their gradients.

    What one rank's weights make of them is averaged with what the others make: all of them grow, at any rate.
    """
    ranks = fastest(facts.rates) if facts.shared else ()
    if found is None or found.slug not in _RAN_AWAY or not ranks:
        return found
    low = min(facts.rates.values())
    others = words.ranks([rank for rank, rate in facts.rates.items() if rate == low])
    told = (
        "They take the same gradients, at rates of their own: what one rank's weights make is averaged with the rest."
    )
    text = (
        f"Give all ranks the same learning rate: look at what sets it on {words.ranks(ranks)}. {words.number(low)}, as "
        f"on {others}, is a first try."
    )
    name = facts.harm.optimizer if facts.harm is not None else None
    mend = Suggestion(text, f"{name}(..., lr={words.number(low)})" if name else None)
    return Cause("lr_divergence", (found.evidence[0], told), (mend,), found.strength, story=True)

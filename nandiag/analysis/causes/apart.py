"""Ranks that take the same gradients at learning rates of their own: their weights drift apart (reader side)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nandiag.analysis.causes.course import Course
from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.steps import rates
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_RAN_AWAY = frozenset({"lr_divergence", "gradient_explosion"})


def fastest(rates: dict[int, float]) -> tuple[int, ...]:
    """Return the ranks with the highest learning rate, where the ranks differ in it."""
    high = max(rates.values(), default=0.0)
    return tuple(sorted(rank for rank, rate in rates.items() if rate == high)) if len(set(rates.values())) > 1 else ()


def by_rates(facts: Facts, found: Cause | None, found_in: Sequence[Course]) -> Cause | None:
    """Return ``found`` as what the one rate did that is too high, where the ranks share their gradients.

    What one rank's weights make of them is averaged with what the others make: all of them grow, at any rate. Where
    the lowest rate is too high as well, by how fast they grew, it is none to try. Ranks that do not share them, of
    which one with the highest rate ran away, may be given the same rate before all else.
    """
    ranks, low = fastest(facts.rates), min(facts.rates.values(), default=0.0)
    if found is None or found.slug not in _RAN_AWAY or not ranks:
        return found
    others = words.ranks([rank for rank, rate in facts.rates.items() if rate == low])
    if not facts.shared:
        own = set(facts.origin.ranks) <= set(ranks) and low > 0.0
        return replace(found, suggestions=(_alike(facts, ranks, others, low), *found.suggestions)) if own else found
    most = _stable(facts, found_in)
    if found.slug == "lr_divergence" and low > most:
        both = (
            f"By that growth {words.number(low)}, as on {others}, is too high as well: above about {most:.1g} it grows."
        )
        return replace(found, evidence=(*found.evidence, both))
    told = (
        "They take the same gradients, at rates of their own: what one rank's weights make is averaged with the rest."
    )
    mend = _alike(facts, ranks, others, low)
    return Cause("lr_divergence", (found.evidence[0], told), (mend,), found.strength, story=True)


def _alike(facts: Facts, ranks: Sequence[int], others: str, low: float) -> Suggestion:
    text = (
        f"Give all ranks the same learning rate: look at what sets it on {words.ranks(ranks)}. {words.number(low)}, as "
        f"on {others}, is a first try."
    )
    name = facts.harm.optimizer if facts.harm is not None else None
    return Suggestion(text, f"{name}(..., lr={words.number(low)})" if name else None)


def _stable(facts: Facts, found_in: Sequence[Course]) -> float:
    """Return the highest rate at which the gradients would not have grown; their mean moves by the mean rate."""
    mean = sum(facts.rates.values()) / len(facts.rates)
    return rates.highest(facts, found_in[0], mean) if found_in else math.inf

"""The verdict on a loss that the script left out by itself, and by which nothing was harmed (reader side)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nandiag.analysis.causes import Explain
from nandiag.analysis.left_out.as_harm import harm_of, looks_of
from nandiag.analysis.origin import choose
from nandiag.analysis.place import origin_of
from nandiag.analysis.report import RankState, Verdict
from nandiag.analysis.timeline import Timeline
from nandiag.analysis.verdict import Background, of_claim
from nandiag.store.reader import RankLog


def left_out(
    timeline: Timeline, states: Mapping[int, RankState], logs: tuple[RankLog, ...], causes: tuple[Explain, ...] = ()
) -> Verdict | None:
    """Return what would be said of the first loss left out had it been harm; None where its origin is not known."""
    known = [one for one in timeline.skips if one.event.look is not None]
    first = min(((one.attempt, one.event.step) for one in known), default=None)
    at = [one for one in known if (one.attempt, one.event.step) == first]
    as_harm = replace(
        timeline, skips=(), stops=(), sent=(), nexts=(), harms=tuple(map(harm_of, at)), looks=tuple(looks_of(at))
    )
    claim = choose(as_harm, dict(states))
    if claim is None:
        return None
    verdict = of_claim(claim, origin_of(claim, logs), as_harm, Background(causes=causes))
    return replace(verdict, anomaly=False)

"""The verdict on a loss that the script left out by itself, and by which nothing was harmed (reader side)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nandiag.analysis.causes import Explain
from nandiag.analysis.origin import choose
from nandiag.analysis.place import origin_of
from nandiag.analysis.report import RankState, Verdict
from nandiag.analysis.timeline import Seen, Timeline
from nandiag.analysis.verdict import Background, of_claim
from nandiag.events import Harm, Looked, Skipped
from nandiag.store.reader import RankLog


def left_out(
    timeline: Timeline, states: Mapping[int, RankState], logs: tuple[RankLog, ...], causes: tuple[Explain, ...] = ()
) -> Verdict | None:
    """Return what would be said of the first loss left out had it been harm; None where its origin is not known."""
    known = [(one, look) for one in timeline.skips if (look := one.event.look) is not None]
    first = min(((one.attempt, one.event.step) for one, _ in known), default=None)
    at = [(one, look) for one, look in known if (one.attempt, one.event.step) == first]
    as_harm = replace(
        timeline, skips=(), stops=(), sent=(), nexts=(),
        harms=tuple(_moved(one, _harm(one.event, look)) for one, look in at),
        looks=tuple(_moved(one, look) for one, look in at),
    )  # fmt: skip
    claim = choose(as_harm, dict(states))
    if claim is None:
        return None
    verdict = of_claim(claim, origin_of(claim, logs), as_harm, Background(causes=causes))
    return replace(verdict, anomaly=False)


def _moved(one: Seen[Skipped], event: Harm | Looked) -> Seen[Any]:
    return Seen(one.rank, one.attempt, one.pid, one.seq, one.time, event)


def _harm(skip: Skipped, look: Looked) -> Harm:
    what, phase = ("loss", "loss") if skip.of != "gradient norm" else ("gradient", "backward")
    return Harm(what, skip.step, phase, look.outputs[:1], 1, 1, micro_step=look.micro_step, loss=skip.loss)

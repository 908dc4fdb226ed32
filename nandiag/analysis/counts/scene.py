"""The origin where ranks count their steps apart: chosen in the count of its own rank (reader side)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nandiag.analysis import timeline
from nandiag.analysis.counts.laid import aligned, moment
from nandiag.analysis.counts.shared import Counts, counts_of
from nandiag.analysis.left_out.anew import without_given_up
from nandiag.analysis.left_out.ended import with_ended
from nandiag.analysis.left_out.overturned import without_overturned
from nandiag.analysis.origin import Claim, choose
from nandiag.analysis.report import RankState
from nandiag.analysis.timeline import Timeline
from nandiag.analysis.ways.messages import with_senders
from nandiag.store.reader import RankLog


@dataclass(frozen=True, slots=True)
class Chosen:
    """The claim with what it was chosen by: in the steps of the claim's own rank where ranks count apart."""

    claim: Claim | None
    events: Timeline
    states: dict[int, RankState]
    logs: tuple[RankLog, ...]


def events_of(logs: tuple[RankLog, ...]) -> Timeline:
    """Return what the ranks saw with what follows of it: what they sent, and that some trained no more, or did so."""
    return with_ended(without_given_up(without_overturned(with_senders(timeline.build(logs)))))


def chosen(logs: tuple[RankLog, ...], states: dict[int, RankState]) -> Chosen:
    """Return the best founded claim on what the ranks saw; see :func:`nandiag.analysis.origin.choose`."""
    counts = counts_of(logs)
    if not counts.apart:
        return _plain(logs, states)
    # The finest count tells moments apart best. The origin's is what the report is written in.
    by = counts.finest()
    tried: set[int] = set()
    while True:
        found = _in_count_of(by, logs, states, counts)
        tried.add(by)
        if found.claim is None or found.claim.ranks[0] in tried:
            return found
        by = found.claim.ranks[0]


def _plain(logs: tuple[RankLog, ...], states: dict[int, RankState]) -> Chosen:
    events = events_of(logs)
    return Chosen(choose(events, states), events, states, logs)


def _in_count_of(rank: int, logs: tuple[RankLog, ...], states: dict[int, RankState], counts: Counts) -> Chosen:
    laid, own = aligned(logs, counts, rank)
    moved = {number: _moved(number, state, rank, counts) for number, state in states.items()}
    events = replace(events_of(laid), own=own)
    return Chosen(choose(events, moved), events, moved, laid)


def _moved(number: int, state: RankState, rank: int, counts: Counts) -> RankState:
    pairs = counts.pairs((number, state.attempt), (rank, state.attempt))
    return replace(state, last_step=moment(pairs, state.last_step)) if pairs and state.last_step is not None else state

"""Where the first harm came from, as far as the events tell while the run goes on (launcher)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nandiag.analysis import timeline
from nandiag.analysis.origin import choose
from nandiag.analysis.ways.left import without_orderly
from nandiag.analysis.ways.messages import with_senders
from nandiag.events import Looked
from nandiag.store.reader import RankLog


def first_look(logs: Iterable[RankLog]) -> tuple[int, Looked] | None:
    """Return the rank and the look that the report would choose of these events; None where it would choose none."""
    events = with_senders(timeline.build(without_orderly(logs, {})))
    claim = choose(events, {})
    if claim is None or claim.basis != "look" or claim.look is None:
        return None
    return claim.look.rank, _in_own_step(claim.look, events)


def _in_own_step(look: timeline.Seen[Looked], events: timeline.Timeline) -> Looked:
    """Return the look of a rank that sent with the step of its own, where it saw harm there and not at the other's.

    At which steps ranks make the same calls is not known before they end.
    """
    own = look.event.facts.get("own_step")
    harmed = {one.event.step for one in events.harms if (one.rank, one.attempt) == (look.rank, look.attempt)}
    apart = isinstance(own, int) and own in harmed and look.event.step not in harmed
    return replace(look.event, step=own) if apart and isinstance(own, int) else look.event

"""Where the first harm came from, as far as the events tell while the run goes on (launcher)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis import timeline
from nandiag.analysis.origin import choose
from nandiag.analysis.ways.left import without_orderly
from nandiag.analysis.ways.messages import with_senders
from nandiag.events import Looked
from nandiag.store.reader import RankLog


def first_look(logs: Iterable[RankLog]) -> tuple[int, Looked] | None:
    """Return the rank and the look that the report would choose of these events; None where it would choose none."""
    claim = choose(with_senders(timeline.build(without_orderly(logs, {}))), {})
    if claim is None or claim.basis != "look" or claim.look is None:
        return None
    return claim.look.rank, claim.look.event

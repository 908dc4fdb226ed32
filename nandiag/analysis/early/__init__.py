"""Early warnings of all ranks, each kind once, as findings of severity ``warning`` (launcher and reader)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.early.texts import ON_THE_WAY, TEXTS, told
from nandiag.analysis.report import Finding
from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Warned, words

__all__ = ["SLUGS", "line", "warnings_of"]

SLUGS = frozenset(TEXTS)
_MOST = 20


def warnings_of(timeline: Timeline) -> Iterable[Finding]:
    """Yield one finding for each kind of warning and what it is about; those of several ranks are one."""
    groups: dict[tuple[int, str, str | None], list[Seen[Warned]]] = {}
    for one in timeline.warned:
        if one.event.slug == ON_THE_WAY:
            continue
        groups.setdefault((one.attempt, one.event.slug, one.event.name), []).append(one)
    for (_, slug, _), members in list(groups.items())[:_MOST]:
        first = _most_of(members)
        ranks = tuple(sorted({one.rank for one in members}))
        text = f"{_where(first.event, ranks)}: {told(first.event)}{_more(members)}."
        yield Finding(slug, "warning", text[:1].upper() + text[1:], ranks, first.event.step)


def _most_of(members: list[Seen[Warned]]) -> Seen[Warned]:
    """Return the warning to tell: of those that ranks gave in the first step that of the largest value."""
    at = [one for one in members if one.event.step == members[0].event.step]
    return max(at, key=lambda one: words.as_number(one.event.facts.get("size")) or 0.0)


def line(rank: int, warned: Warned) -> str:
    """Return one warning of one rank in one line, as it is shown while the run goes on."""
    return f"warning[{warned.slug}]: {_where(warned, (rank,))}: {told(warned)}"


def _where(warned: Warned, ranks: tuple[int, ...]) -> str:
    return f"{words.ranks(ranks)}, step {warned.step}"


def _more(members: list[Seen[Warned]]) -> str:
    """Return how often it came again on the rank that saw most of it."""
    by_rank: dict[int, list[Warned]] = {}
    for one in members:
        by_rank.setdefault(one.rank, []).append(one.event)
    most = max(by_rank.values(), key=lambda own: max(one.total for one in own))
    total = max(one.total for one in most)
    last = max(one.step for one in most)
    return f" ({total:,} times in all, the last one written at step {last})" if total > 1 else ""

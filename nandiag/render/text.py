"""Text for whoever reads it: safe to show, in the characters that the reader's encoding has; how damage travelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nandiag.analysis.report import Spread
from nandiag.events import words
from nandiag.events.visible import LONGEST, clean, clean_line
from nandiag.settings import columns

__all__ = ["LONGEST", "clean", "clean_line", "encodable", "spread_lines", "wide"]

WIDTH_WITHOUT_TERMINAL = 100
NARROWEST = 40
_WHAT = {"optimizer_state": "optimizer state", "frozen": "untrained parameters", "gradient": "gradients"}


def wide(terminal: int | None) -> int:
    """Return how many columns text gets: those of the ``terminal`` where there is one, else those of ``COLUMNS``."""
    return max(terminal or columns() or WIDTH_WITHOUT_TERMINAL, NARROWEST)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with what ``encoding`` cannot say written as a backslash escape."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)


def spread_lines(spreads: Sequence[Spread]) -> list[str]:
    """Return a line for each way; what came by the same way to the same ranks in one step stands in one."""
    ways: dict[tuple[object, ...], list[Spread]] = {}
    for one in spreads:
        ways.setdefault((one.ranks, one.step, one.via), []).append(one)
    return [_line(together) for together in ways.values()]


def _line(together: Sequence[Spread]) -> str:
    first = together[0]
    via = f", through {first.via}" if first.via else ""
    return f"{_and(map(_what, together))} of {words.ranks(first.ranks)} at step {first.step}{via}"


def _what(one: Spread) -> str:
    named = f" {words.few(list(one.names), most=3)}" if one.names else ""
    return _WHAT.get(one.what, one.what) + named


def _and(texts: Iterable[str]) -> str:
    *before, last = dict.fromkeys(texts)
    return f"{', '.join(before)} and {last}" if before else last

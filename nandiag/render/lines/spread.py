"""How the damage travelled, a line for each way that it took (launcher and reader)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nandiag.analysis.report import Spread
from nandiag.events import words

_WHAT = {"optimizer_state": "optimizer state", "frozen": "untrained parameters", "gradient": "gradients"}


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

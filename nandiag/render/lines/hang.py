"""Ranks that waited in vain, on a terminal and as plain lines: where each stood, and why (launcher and reader)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text

from nandiag.analysis.hangs.told import Hang, Stand
from nandiag.render.frame import MOST, STYLES, Frame, hanging
from nandiag.render.snippet import snippet
from nandiag.render.text import clean


def lines(hang: Hang, seen: str, width: int, short: Callable[[str], str]) -> Iterable[Text]:
    """Yield the headline, each stand with its line of code, and what explains it.

    ``seen`` is what the run showed apart from that; ``short`` cuts names of files.
    """
    frame = Frame(width, max([2, *(len(str(stand.place.line)) for stand in hang.stands if stand.place)]))
    head = Text().append(f"error[{clean(hang.slug)}]", style=STYLES["error"]).append(": ", style="bold")
    yield from hanging(head, Text(clean(hang.summary), style="bold"), width, indent=2)
    for stand in hang.stands:
        yield from _stand(stand, frame, short)
    yield from frame.notes(hang.evidence, MOST["evidence"], "note")
    yield from frame.notes(hang.help, MOST["help"], "help")
    yield from frame.notes(_by_timeout(hang), 1, "note")
    yield from frame.notes([seen] if seen else [], 1, "note")


def texts(hang: Hang) -> list[str]:
    """Return where the ranks stood and why, one sentence each."""
    return [f"{_said(stand)}{_at(stand)}" for stand in hang.stands] + [*hang.evidence, *hang.help, *_by_timeout(hang)]


def _by_timeout(hang: Hang) -> list[str]:
    if hang.seconds is None:
        return []
    return [f"nandiag ended the run: no rank made progress for {hang.seconds:g} s (--hang-timeout)."]


def _said(stand: Stand) -> str:
    return f"{stand.sentence[:1].upper()}{stand.sentence[1:]}"


def _at(stand: Stand) -> str:
    return f" ({stand.place.file}:{stand.place.line})" if stand.place else ""


def _stand(stand: Stand, frame: Frame, short: Callable[[str], str]) -> Iterable[Text]:
    said = clean(stand.sentence)
    arrow = Text(" " * frame.gutter).append("--> ", style=STYLES["frame"])
    if stand.place is None:
        yield from hanging(arrow, Text(said), frame.width)
        return
    where = f"{clean(short(stand.place.file))}:{stand.place.line} in {clean(stand.place.function)}"
    yield from hanging(arrow, Text(f"{where}: {said}"), frame.width)
    if not stand.place.source:
        return
    piece = snippet(stand.place.source, stand.place.column, frame.width - frame.gutter - 4)
    yield Text(" " * frame.gutter + " |", style=STYLES["frame"])
    yield frame.bar(str(stand.place.line)).append(piece.code)
    if piece.width:
        yield frame.bar().append(" " * piece.start).append("^" * piece.width, style=STYLES["error"])

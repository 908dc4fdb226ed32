"""The source line of an origin with its expression underlined, cut to a width (launcher and reader)."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from nandiag.render.text import LONGEST, clean_line

CUT = "..."
_LEAST = 20


@dataclass(frozen=True, slots=True)
class Snippet:
    """One line of code as shown; the expression covers ``width`` terminal cells from cell ``start`` (0: not known)."""

    code: str
    start: int
    width: int


def snippet(source: str, column: tuple[int, int] | None, width: int) -> Snippet:
    """Return the line without its indent, cut so that it fits ``width`` cells and shows the expression's ends."""
    line = clean_line(source[:LONGEST].rstrip("\r\n")).rstrip()
    indent = len(line) - len(line.lstrip())
    line = line[indent:]
    first, last = _clamp(column, indent, len(line))
    if cell_len(line[:last]) > width:
        skip = max(min(first - len(CUT) - 8, len(line)), 0)
        line = CUT + line[skip:] if skip else line
        shift = skip - len(CUT) if skip else 0
        first, last = first - shift, last - shift
        line, last = _ends(line, first, last, width)
    shown = _fit(line[: 4 * width], width)
    start = cell_len(line[:first])
    # What stands in the place of the rest is no part of the expression.
    end = cell_len(shown) - (len(CUT) if shown != line else 0)
    return Snippet(shown, start, max(min(cell_len(line[first:last]), end - start), 0))


def _ends(line: str, first: int, last: int, width: int) -> tuple[str, int]:
    """Return the line with the middle of an expression that is too long left out: what broke it often stands last."""
    rest = CUT if last < len(line) else ""
    room = width - cell_len(line[:first]) - len(CUT) - len(rest)
    if cell_len(line[:last]) + len(rest) <= width or room < _LEAST:
        return line, last
    begin = _fit(line[first:last][: 4 * width], room - room // 2 + len(CUT))
    end = _fit(line[first:last][: -4 * width - 1 : -1], room // 2 + len(CUT))[: -len(CUT)][::-1]
    shown = f"{line[:first]}{begin}{end}"
    return shown + rest, len(shown)


def _clamp(column: tuple[int, int] | None, indent: int, length: int) -> tuple[int, int]:
    if column is None:
        return 0, 0
    first = min(max(column[0] - indent, 0), length)
    return first, min(max(column[1] - indent, first), length)


def _fit(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    while line and cell_len(line) > width - len(CUT):
        line = line[:-1]
    return line + CUT

"""The left edge of a diagnostic on a terminal, and text that hangs below its mark (launcher and reader)."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from nandiag.analysis.report import Suggestion
from nandiag.render.text import clean

MOST = {"tensors": 5, "evidence": 6, "help": 3, "spread": 4, "findings": 5, "notes": 6, "nccl": 6}
COMMAND = "nandiag report"
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold", "help": "bold cyan", "frame": "blue"}


class Frame:
    """The left edge of a diagnostic: a gutter for line numbers, then marked lines that hang below their mark.

    ``command`` shows this report: with ``--json`` also what is cut off here.
    """

    def __init__(self, width: int, gutter: int, command: str = COMMAND) -> None:
        self.width = width
        self.gutter = gutter
        self.command = command

    def rest(self, number: int) -> str:
        """Return how many more there are, and how to see them."""
        return f"and {number} more ({self.command} --json)"

    def bar(self, number: str = "") -> Text:
        """Return the beginning of a line of code."""
        return Text().append(number.rjust(self.gutter) + " | ", style=STYLES["frame"])

    def notes(self, texts: Iterable[str], most: int, mark: str) -> Iterable[Text]:
        """Yield each text behind ``= mark:``, the first ``most`` of them."""
        every = list(texts)
        for text in every[:most]:
            yield from hanging(self.mark(mark), Text(clean(text)), self.width)
        if len(every) > most:
            yield from hanging(self.mark(mark), Text(clean(self.rest(len(every) - most))), self.width)

    def helps(self, suggestions: Iterable[Suggestion]) -> Iterable[Text]:
        """Yield each suggestion, its code below it."""
        for suggestion in list(suggestions)[: MOST["help"]]:
            yield from self.notes([suggestion.text], 1, "help")
            for line in (suggestion.code or "").splitlines():
                yield Text(" " * (self.gutter + 9) + clean(line), style="cyan")

    def mark(self, mark: str) -> Text:
        """Return the beginning of a note."""
        head = Text(" " * (self.gutter + 1)).append("= ", style=STYLES["frame"])
        return head.append(f"{mark}: ", style=STYLES.get(mark.partition("[")[0], "bold"))


def hanging(head: Text, body: Text, width: int, indent: int | None = None) -> Iterable[Text]:
    """Yield ``body`` wrapped behind ``head``; later lines are indented by ``indent``, or stand below the first."""
    pad = head.cell_len if indent is None else indent
    first, rest = _first_line(body, max(width - head.cell_len, 20))
    yield Text.assemble(head, first)
    while rest.plain:
        line, rest = _first_line(rest, max(width - pad, 20))
        yield Text.assemble(" " * pad, line)


def _first_line(body: Text, room: int) -> tuple[Text, Text]:
    """Return the part of ``body`` that fits ``room`` cells, broken between words where it can be, and the rest."""
    first = (body.wrap(Console(width=room, file=None), room, overflow="fold") or [Text()])[0]
    first.rstrip()
    # Whatever wrapping does, each line takes something: else there would be no end of them.
    rest = body.plain[max(len(first.plain), 1) :].lstrip()
    return first, Text(rest, style=body.style)

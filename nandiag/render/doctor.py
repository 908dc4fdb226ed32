"""Doctor's table of checks on a terminal, and the block for a bug report (launcher)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from nandiag.analysis.doctor import OK, SKIPPED, STATES, WARNING, WRONG, Check, Doctor
from nandiag.render.text import clean, encodable, wide

MOST_NAME = 24
_STYLES = {OK: "green", WARNING: "bold yellow", WRONG: "bold red", SKIPPED: "dim"}


def show(doctor: Doctor, block: Sequence[str], file: TextIO) -> None:
    """Write table, sum and block to ``file``; colours follow the terminal and NO_COLOR. Raises OSError."""
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    console.width = wide(console.width if file.isatty() else None)
    with console.capture() as taken:
        for line in lines(doctor, block, console.width):
            console.print(line, soft_wrap=True)
    file.write(encodable(taken.get(), getattr(file, "encoding", None)))
    file.flush()


def lines(doctor: Doctor, block: Sequence[str], width: int) -> list[Text]:
    """Return the lines: a check each with its mend below, what is wrong in sum, the block to paste."""
    names = min(max((len(check.name) for check in doctor.checks), default=0), MOST_NAME)
    found = [line for check in doctor.checks for line in _check(check, names, width)]
    return [*found, Text(), Text(_sum(doctor.checks), style="bold"), *_block(block)]


def _check(check: Check, names: int, width: int) -> Iterable[Text]:
    state = Text(check.state.ljust(len(WARNING)), style=_STYLES.get(check.state, ""))
    head = Text.assemble(state, "  ", clean(check.name).ljust(names), "  ")
    yield from _hung(head, clean(check.seen), width)
    if check.mend:
        mark = Text.assemble(" " * (head.cell_len - 6), ("mend: ", "bold cyan"))
        yield from _hung(mark, clean(check.mend), width)


def _hung(head: Text, body: str, width: int) -> Iterable[Text]:
    room = max(width - head.cell_len, 20)
    for number, line in enumerate(Text(body).wrap(Console(width=room, file=None), room) or [Text()]):
        shown = Text.assemble(" " * head.cell_len if number else head, line)
        shown.rstrip()
        yield shown


def _sum(checks: Sequence[Check]) -> str:
    counts = Counter(check.state for check in checks)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    verdict = "something is wrong" if counts[WRONG] else "nothing is wrong"
    return f"nandiag doctor: {verdict} ({', '.join(parts)})."


def _block(block: Sequence[str]) -> Iterable[Text]:
    yield Text()
    yield Text("For a bug report (names of hosts, users, networks and folders are left out):", style="bold")
    yield Text("```")
    yield from (Text(clean(line)) for line in block)
    yield Text("```")

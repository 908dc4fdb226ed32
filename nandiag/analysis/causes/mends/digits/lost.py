"""The op that lost digits, as a worker saw it: its line, its dtype, and numbers that tell of it (reader side)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nandiag.analysis.causes.facts import Facts
from nandiag.events import Site, words
from nandiag.events.forms import build


@dataclass(frozen=True, slots=True)
class Loss:
    """``how`` digits were lost; ``facts`` are those on the op that broke, as if it stood where they were lost."""

    how: str
    dtype: str
    told: dict[str, object]
    facts: Facts
    broke: str
    broke_at: tuple[str | None, int | None]

    @property
    def line(self) -> str:
        """The line in words: ``line 14``, ``line 14 of data.py`` where the op that broke is in another file."""
        origin = self.facts.origin
        file = f" of {words.file_name(origin.file)}" if origin.file != self.broke_at[0] else ""
        return f"line {origin.line}{file}"

    def put(self, code: str) -> str:
        """Return a line of code with the number of the line that it is for, where that is not the one that broke."""
        origin = self.facts.origin
        return code if (origin.file, origin.line) == self.broke_at else f"{code}  # {self.line}"

    @property
    def op(self) -> str:
        """The short name of the op: ``mul``."""
        return words.op(self.facts.origin.op or "").strip("_")

    def number(self, name: str) -> float | None:
        """Return one of the numbers that tell of it."""
        return words.as_number(self.told.get(name))


def loss_of(facts: Facts) -> Loss | None:
    """Return what lost the digits by which the origin's op broke; None where none did, or its line is not known."""
    told = facts.extra.get("lost")
    site = _site(told.get("site")) if isinstance(told, dict) else None
    if not isinstance(told, dict) or facts.look is None or site is None or site.line is None:
        return None
    how, dtype = told.get("how"), told.get("dtype")
    if not isinstance(how, str) or not isinstance(dtype, str):
        return None
    around = site.around
    own = around is None or around.statement is None
    source, column = (site.source, site.column) if own or around is None else (around.statement, around.column)
    origin = replace(facts.origin, op=site.op, file=site.file, line=site.line, source=source, column=column)
    there = replace(facts, origin=origin, look=replace(facts.look, site=site))
    return Loss(how, dtype, told, there, facts.op or "it", (facts.origin.file, facts.origin.line))


def _site(data: object) -> Site | None:
    try:
        return build(Site, data)  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        return None

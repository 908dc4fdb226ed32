"""Text for whoever reads it: safe to show, and said in the characters that the reader's encoding has."""

from __future__ import annotations

from nandiag.events.visible import LONGEST, clean, clean_line
from nandiag.settings import columns

__all__ = ["LONGEST", "clean", "clean_line", "encodable", "wide"]

WIDTH_WITHOUT_TERMINAL = 100
NARROWEST = 40


def wide(terminal: int | None) -> int:
    """Return how many columns text gets: those of the ``terminal`` where there is one, else those of ``COLUMNS``."""
    return max(terminal or columns() or WIDTH_WITHOUT_TERMINAL, NARROWEST)


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with what ``encoding`` cannot say written as a backslash escape."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)

"""Text for whoever reads it: safe to show, and said in the characters that the reader's encoding has."""

from __future__ import annotations

from nandiag.events.visible import LONGEST, clean, clean_line

__all__ = ["LONGEST", "clean", "clean_line", "encodable"]


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with what ``encoding`` cannot say written as a backslash escape."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)

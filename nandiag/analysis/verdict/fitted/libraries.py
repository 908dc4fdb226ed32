"""Help for a line of a library's: it is mended by what the script gives it, not in the library's file (reader side)."""

from __future__ import annotations

import os
import re
from difflib import SequenceMatcher

from nandiag.analysis.causes import Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_ALIKE = 0.6
_COUNTED = re.compile(
    r"/\s*\(?((?:\w+\.)*(?:n_|num_|\w*(?:count|total|mask|valid|items|tokens|len))\w*)", re.IGNORECASE
)


def in_own_lines(facts: Facts, told: tuple[Suggestion, ...]) -> tuple[Suggestion, ...]:
    """Return what was ``told``, but for the code that is a library's own line written anew."""
    file, source = facts.origin.file or "", (facts.origin.source or "").strip()
    if not source or not any(one in file for one in _INSTALLED) or not any(_edits(one, source) for one in told):
        return told
    kept = tuple(one for one in told if not _edits(one, source))
    return (Suggestion(_of_given(facts, file, source)), *kept)


def _edits(one: Suggestion, source: str) -> bool:
    """Whether the code of a suggestion is the library's line, or has that among its own."""
    lines = [line.strip() for line in (one.code or "").splitlines()]
    return any(SequenceMatcher(None, line, source).ratio() >= _ALIKE for line in lines if line)


def _of_given(facts: Facts, file: str, source: str) -> str:
    called = facts.extra.get("called_at")
    by = f" from {words.file_name(called)}" if isinstance(called, str) else ""
    text = f"This line is a library's ({words.file_name(file)}), to be left as it is: look at what it is given{by}."
    name = _count_of_zero(facts, source)
    if name is None:
        return text
    why = f"{name} is 0 there, so that nothing of this batch counts"
    return f"{text} {why}: drop such samples from the data (labels that are all ignored, a mask of zeros)."


def _count_of_zero(facts: Facts, source: str) -> str | None:
    """Return the divisor that is 0 and counts, by its name."""
    _, *by = facts.origin.inputs or (None,)
    found = _COUNTED.search(source)
    zero = facts.op == "div" and bool(by) and by[0].numel == by[0].zeros == 1
    return found[1] if found is not None and zero else None

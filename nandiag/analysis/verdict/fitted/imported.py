"""The code of suggestions in the names that the script's own file has for torch (reader side)."""

from __future__ import annotations

import re
from dataclasses import replace

from nandiag.analysis.causes import Facts
from nandiag.analysis.report import Suggestion

_TORCH = re.compile(r"(?<![\w.])torch\.")


def in_names_of_file(facts: Facts, told: tuple[Suggestion, ...]) -> tuple[Suggestion, ...]:
    """Return what was ``told``, with torch as the file of the origin has it, or with the import that it needs."""
    by = facts.around.torch if facts.around is not None else None
    if by in {None, "torch"} or _TORCH.search(facts.origin.source or ""):
        return told
    return tuple(_named(one, by or "") for one in told)


def _named(one: Suggestion, by: str) -> Suggestion:
    if one.code is None or not _TORCH.search(one.code):
        return one
    if by:
        return replace(one, code=_TORCH.sub(f"{by}.", one.code))
    return replace(one, text=f"{one.text} For that the file needs import torch.")

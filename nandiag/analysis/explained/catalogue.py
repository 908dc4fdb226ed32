"""All explanations there are: every ``EXPLAIN`` of the modules of the analysis (reader side)."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from nandiag.analysis.explained.explanation import Explanation

_ROOM = "nandiag.analysis"


@cache
def catalogue() -> dict[str, Explanation]:
    """Return every explanation by its slug, in the order of the slugs."""
    found = {one.slug: one for module in _modules() for one in explanations_of(module)}
    return dict(sorted(found.items()))


def explanations_of(module: object) -> tuple[Explanation, ...]:
    """Return what a module says of the slugs that it prints."""
    said = getattr(module, "EXPLAIN", ())
    return (said,) if isinstance(said, Explanation) else tuple(said)


def _modules() -> Iterator[ModuleType]:
    room = importlib.import_module(_ROOM)
    for one in pkgutil.walk_packages(room.__path__, f"{_ROOM}."):
        yield importlib.import_module(one.name)

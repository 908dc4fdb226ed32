"""The catalogue of causes: one file each, holding ``explain(facts) -> Cause | None``; a new file is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from nandiag.analysis.causes.facts import Cause, Facts

__all__ = ["Cause", "Facts", "explain"]


@cache
def _catalogue() -> tuple[Callable[[Facts], Cause | None], ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return tuple(module.explain for module in modules if hasattr(module, "explain"))


def explain(facts: Facts) -> tuple[Cause | None, Cause | None]:
    """Return the best founded story and the best founded mechanism, each ``None`` when no cause fits."""
    causes = [cause for one in _catalogue() if (cause := one(facts)) is not None]
    return _best(causes, story=True), _best(causes, story=False)


def _best(causes: list[Cause], *, story: bool) -> Cause | None:
    return max((cause for cause in causes if cause.story is story), key=lambda cause: cause.strength, default=None)

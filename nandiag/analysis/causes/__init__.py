"""The catalogue of causes: one file each, holding ``explain(facts) -> Cause | None`` and the text ``EXPLAIN``.

A new file is found by itself. Other packages add causes by entry points of the group ``nandiag.causes``: each names an
object with the same two; what such a file needs can be imported from here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

from nandiag.analysis.causes import picked, summed_shift, unkept
from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends import digits
from nandiag.analysis.causes.mends.matrices import spectra
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion

__all__ = ["LIKELY", "POSSIBLE", "PROVEN", "Cause", "Explain", "Explanation", "Facts", "Suggestion", "explain"]

Explain: TypeAlias = Callable[[Facts], Cause | None]
BUG = "a cause could not be judged, by a bug in nandiag itself"


@cache
def _catalogue() -> tuple[Explain, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return tuple(module.explain for module in modules if hasattr(module, "explain"))


def explain(facts: Facts, others: tuple[Explain, ...] = ()) -> tuple[Cause | None, Cause | None]:
    """Return the best founded story and the best founded mechanism, each ``None`` when no cause fits.

    ``others`` are asked first: where a cause of theirs is founded as well as one of the catalogue, theirs is meant.
    One of the catalogue that fails costs its own say alone, or the help for the script's own line alone; the evidence
    of the mechanism tells of it.
    """
    failed: list[str] = []
    asked: tuple[Explain, ...] = (*others, *(partial(_judged, one, failed=failed) for one in _catalogue()))
    causes = [cause for one in asked if (cause := one(facts)) is not None]
    story, mechanism = (_best(causes, story=one) for one in (True, False))
    if facts.scale_alone is not None:  # what went in was no matter without the scale, however large it was
        story = None
    if story is not None and mechanism is not None and mechanism.alone and story.slug == "gradient_explosion":
        story = None
    for more in (digits.instead, spectra.instead, picked.with_branch, unkept.told, summed_shift.told):
        mechanism = _told_by(more, facts, mechanism, failed=failed)
    if mechanism is not None and failed:
        mechanism = replace(mechanism, evidence=(*mechanism.evidence, *failed))
    return story, mechanism


def _told_by(
    more: Callable[[Facts, Cause], Cause | None], facts: Facts, own: Cause | None, *, failed: list[str]
) -> Cause | None:
    """Return the cause with what the script's text tells besides, or in the place of its suggestions."""
    return own and (_answer(lambda given: more(given, own), facts, failed=failed) or own)


def _judged(one: Explain, facts: Facts, *, failed: list[str]) -> Cause | None:
    """Return what a cause answers; where it fails, a mechanism is judged by the numbers alone, without the text.

    A story is none then: what would speak against it may stand in the text.
    """
    before = len(failed)
    found = _answer(one, facts, failed=failed)
    if len(failed) == before:
        return found
    bare = _answer(one, facts.without_text(), failed=[])
    return None if bare is None or bare.story else bare


def _answer(one: Explain, facts: Facts, *, failed: list[str]) -> Cause | None:
    try:
        return one(facts)
    except Exception as error:  # noqa: BLE001 - rank, step, op and line are known without it
        failed.append(f"{BUG}: {one.__module__.rpartition('.')[2]} failed ({type(error).__name__}: {error})")
        return None


def _best(causes: list[Cause], *, story: bool) -> Cause | None:
    return max((cause for cause in causes if cause.story is story), key=lambda cause: cause.strength, default=None)

"""Causes of third parties, by entry points of the group ``nandiag.causes`` (launcher and reader).

An entry point names a module, or any object, with ``explain(facts) -> Cause | None``: a pure function on the recorded
facts (:mod:`nandiag.analysis.causes`). Beside it ``EXPLAIN``, one Explanation or several, is what ``nandiag explain``
says of its slugs. A plug-in that fails is a note in the report, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from nandiag.analysis import Report, analyse
from nandiag.analysis.causes import Cause, Facts
from nandiag.analysis.explained import Explanation, explanations_of
from nandiag.analysis.nccl.summary import Logs
from nandiag.store.reader import RunRecord

if TYPE_CHECKING:  # it costs 30 ms, and only a report or an explanation needs it
    from importlib import metadata

GROUP = "nandiag.causes"


@dataclass(slots=True)
class Plugins:
    """What was found: functions that never raise, texts, and notes on what went wrong until now."""

    causes: list[Callable[[Facts], Cause | None]] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@cache
def found() -> Plugins:
    """Load every plug-in that is installed; those that cannot be loaded are noted."""
    from importlib import metadata

    plugins = Plugins()
    for point in metadata.entry_points(group=GROUP):
        try:
            thing = point.load()
            function = thing.explain
            plugins.explanations += explanations_of(thing)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's code, whatever it does
            plugins.notes.append(_note(point, f"could not be loaded: {type(error).__name__}: {error}"))
            continue
        plugins.causes.append(_guarded(function, point, plugins.notes))
    return plugins


def analysed(record: RunRecord, nccl: Logs | None = None) -> Report:
    """Return the report on a run, in which the plug-ins had their say."""
    plugins = found()
    report = analyse(record, nccl, tuple(plugins.causes))
    return replace(report, notes=(*report.notes, *dict.fromkeys(plugins.notes)))


def explanations() -> Iterator[Explanation]:
    """Yield what the plug-ins say of their slugs."""
    yield from found().explanations


def _guarded(function: Callable[[Facts], Any], point: metadata.EntryPoint, notes: list[str]) -> Callable[[Facts], Any]:
    def ask(facts: Facts) -> Cause | None:
        try:
            cause: Cause | None = function(facts)
            if cause is not None:
                _check(cause)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - other people's code, whatever it does
            notes.append(_note(point, f"failed: {type(error).__name__}: {error}"))
            return None
        return cause

    return ask


def _check(cause: Any) -> None:
    """Raise TypeError where what a plug-in answered is no cause that a report can hold."""
    texts = (cause.slug, *cause.evidence, *(one.text for one in cause.suggestions)) if type(cause) is Cause else (None,)
    if not all(isinstance(text, str) for text in texts) or not isinstance(cause.strength, int):
        raise TypeError(f"explain() must return a Cause of texts or None, not {cause!r:.100}")


def _note(point: metadata.EntryPoint, what: str) -> str:
    package = point.dist.name if point.dist is not None else point.value
    return f"The plug-in {point.name} of {package} {what}."

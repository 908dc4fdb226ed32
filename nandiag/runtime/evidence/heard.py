"""Bad data that no op of torch's made, and a place in the script that numpy warned of shortly before (worker)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.evidence.warned import Heard
from nandiag.runtime.frames import Frame, best

# A loader that runs ahead makes its batches so many steps before they are used.
_AHEAD = 16
_NUMBERS = ("arg0", "arg1", "arg2", "arg3", "value", "alpha")
_SOURCES = frozenset({"input", "outside"})
# What is known of where the values came from, and nearer than a warning.
_KNOWN = ("birth", "written_in_place", "dataset_index", "came_in")


def with_heard(looked: Looked, heard: Sequence[Heard]) -> Looked:
    """Return ``looked``, or the line that numpy warned of where what came from outside may have come from there."""
    number = looked.source == "op" and any(not math.isfinite(one) for one in _numbers(looked))
    if not (looked.source in _SOURCES or number) or any(looked.facts.get(name) is not None for name in _KNOWN):
        return looked
    near = [one for one in heard if looked.step - _AHEAD <= one.step <= looked.step and _can_make(one, looked)]
    newest = next((one for one in near if one.step == near[-1].step), None)
    frames = () if newest is None else tuple(map(Frame._make, newest.places))
    if newest is None or best(frames) is None:
        return looked
    return replace(
        looked,
        method="tape",
        source="op",
        phase=looked.phase if number else "data",
        site=site_of(Spot(None, None, frames, "data", 0), None),
        inputs=(),
        outputs=looked.outputs if number else looked.inputs,
        facts={**looked.facts, "numpy": newest.said, "heard": True, "number": number},
        reason=f"numpy warned there {_when(looked.step - newest.step)}, and what it made there was not looked at",
    )


def _can_make(heard: Heard, looked: Looked) -> bool:
    """NaN comes of anything, of an infinity too; an infinity does not come of what is invalid."""
    nan = any(fact.nan for fact in looked.inputs) or any(map(math.isnan, _numbers(looked)))
    return nan or not heard.said.startswith("invalid")


def _numbers(looked: Looked) -> list[float]:
    return [one for name in _NUMBERS if isinstance(one := looked.facts.get(name), float)]


def _when(steps: int) -> str:
    return "in this step" if steps == 0 else f"{steps} {'step' if steps == 1 else 'steps'} before"

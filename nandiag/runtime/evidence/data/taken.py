"""Bad values that torch took in from numpy between steps: the line that took them (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, places_on
from nandiag.runtime.look.finite import fact
from nandiag.runtime.numeric.taken import TAKEN
from nandiag.runtime.tape.loop.traits import traits

if TYPE_CHECKING:
    from nandiag.runtime.replay.rerun import Rerun
    from nandiag.runtime.tape.entry import Entry

_FRAMES = 6
_LARGEST = 1 << 26  # an array may lie in a file that is larger than memory
# What is nearer: what the script made before its first step, and a loader's batch.
_KNOWN = frozenset({"birth", "dataset"})
_LIFTED = "aten.lift_fresh.default"


def taken_in(looked: Looked, entries: Sequence[Entry], result: Rerun, tensor: Tensor) -> Looked:
    """Return ``looked``, or the call by which torch took in the bad ``tensor``, of which nothing else is known.

    Where numpy complained of what it made, or another rank sent it, that is nearer; so is the dataset that a loader
    had it from.
    """
    if looked.source not in {"outside", "input"} or not _KNOWN.isdisjoint(looked.facts):
        return looked
    heard = with_heard(looked)
    if heard.source != looked.source or heard.facts.get("heard") is True:
        return looked
    whole, frames = _by_call(entries, result, tensor) or _by_memory(tensor) or (tensor, ())
    seen = fact(whole if whole.numel() <= _LARGEST else tensor)
    if not (seen.bad and frames):
        return looked
    site = site_of(Spot(None, None, frames, "data", looked.micro_step or 0), _LIFTED)
    return replace(looked, phase="data", source="op", site=site, inputs=(), outputs=(seen,), facts=heard.facts)


def _by_call(entries: Sequence[Entry], result: Rerun, tensor: Tensor) -> tuple[Tensor, tuple[Frame, ...]] | None:
    """Return what a call that is taped took in, and its frames: it was made again with the step."""
    for entry in entries:
        for one in result.outputs.get(id(entry), []) if traits(entry.function).from_data else ():
            if storage(one) == storage(tensor):
                return one, entry.frames
    return None


def _by_memory(tensor: Tensor) -> tuple[Tensor, tuple[Frame, ...]] | None:
    known = TAKEN.of(tensor)
    return None if known is None else (known[0], tuple(map(Frame._make, places_on(known[1], _FRAMES)[0])))

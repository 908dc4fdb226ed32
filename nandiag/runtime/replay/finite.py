"""A replay in which nothing broke: what it may have missed, and what it showed all the same (worker)."""

from __future__ import annotations

from dataclasses import replace

from nandiag.events import Looked
from nandiag.runtime.evidence.exchanged import with_exchange
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.replay.case import Case
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import BACKWARD
from nandiag.runtime.tape.packed.lasting import ANEW, came_otherwise

_DROPPED = (
    "other numbers were dropped than in the step: the library's recurrent layers drop by a state of their own, which "
    "had gone on and could not be put back"
)


def finite(case: Case, seen: Evidence, capture: Capture, *, partial: bool) -> Looked:
    """Return that the step was finite; ``partial``: what its first micro-batches did was not run again."""
    doubts = seen.doubts()
    if partial:
        doubts.append("earlier micro-batches of the step were too large to keep")
    if came_otherwise(seen.entries, seen.result.outputs):
        doubts.append(ANEW)
    if seen.tracer.overwritten is not None and seen.tracer.overwritten.drew:
        doubts.append(_DROPPED)
    looked = case.nothing("finite", "; ".join(["run again, the step is finite on this rank", *doubts]))
    looked = replace(looked, facts={"complete": not doubts, "joint": case.joint, **seen.multiplied()})
    backwards = sum(entry.kind == BACKWARD for entry in seen.entries)
    own = [one for one in capture.exchanges if one.places and one.micro_step >= backwards]
    return with_exchange(looked, seen.result.largest_gradient, seen.roots, own)

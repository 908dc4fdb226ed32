"""From what was seen live to the event that tells where harm came from (worker)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.births.births import Births
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.evidence.walk import ancestors, origin
from nandiag.runtime.levels.ops.watch import OpWatch
from nandiag.runtime.levels.ops.watched import Watched
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.rerun import Rerun
from nandiag.runtime.tape.entries import Entry
from nandiag.runtime.tape.warned import HEARD


@dataclass(slots=True)
class Scene:
    """What a step was about, beside its ops: roots of its backward calls, its root modules' calls, its batches."""

    losses: list[tuple[Tensor, int]] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    batches: Any = None
    births: Births | None = None


def account(watch: OpWatch, scene: Scene, case: Case, bad: list[Tensor] | Op | None = None) -> Looked | None:
    """Return whence the harm of ``case`` came, or the ``bad`` tensors, or what the op ``bad`` wrote, where given.

    None where none of what is bad was written by an op that was seen.
    """
    roots: list[nn.Module] = list({id(entry.function): entry.function for entry in scene.entries}.values())
    result = Rerun(losses=list(scene.losses), gradients=list(scene.gradients))
    evidence = Evidence(watch, result, roots, scene.entries, scene.batches, narrow=False, births=scene.births)
    if isinstance(bad, Op):
        ends = [bad]
    elif bad is not None:
        ends = [op for op in map(watch.writer, bad) if op is not None]
    else:
        ends = _last_numbers(watch) if case.unfinished else evidence.ends(case)
    return _way_back(watch, evidence, case, ends)


def _way_back(watch: OpWatch, evidence: Evidence, case: Case, ends: list[Op]) -> Looked | None:
    for op in ancestors(ends):
        if not op.spot.phase:
            op.spot = replace(op.spot, phase=watch.marks.phase(op.index))
    found = origin(ends)
    if found is None:
        return None
    if isinstance(found.op, Watched):
        found.op.tell()
    looked = replace(evidence.found(case, found), method="watch")
    if isinstance(found.op, Watched):
        looked = replace(looked, facts={**looked.facts, **found.op.remembered})
    looked = with_heard(looked, list(HEARD))
    made = found.op.step if isinstance(found.op, Watched) else watch.step
    return looked if made == watch.step else replace(looked, facts={**looked.facts, "made_at_step": made})


def _last_numbers(watch: OpWatch) -> list[Op]:
    """Return the last op of an unfinished forward that made a bad single number: the loss, as a rule."""
    numbers = [op for op in watch.bad_ops() if op.index >= watch.marks.last_backward and op.makes_bad_number]
    return [max(numbers, key=lambda op: op.index)] if numbers else []

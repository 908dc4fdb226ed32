"""From what was seen live to the event that tells where harm came from (worker)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from nandiag.events import Looked, words
from nandiag.runtime.births.births import Births
from nandiag.runtime.births.known import OP
from nandiag.runtime.evidence.explain import scalars_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.op import Op, Stat
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.evidence.walk import Finding, ancestors, origin
from nandiag.runtime.levels.ops.watch import OpWatch
from nandiag.runtime.levels.ops.watched import Watched
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.rerun import Rerun
from nandiag.runtime.tape.entry import Entry


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
    found = _origin(watch, ends)
    _tell_phases(watch, watch.sent)
    if found is None:
        return None
    if isinstance(found.op, Watched):
        found.op.tell()
    before = _by_way_of_python(watch, found)
    if before is not None:
        looked = evidence.found(case, before)
        return replace(looked, method="tape", reason=_FROM_NUMBER.format(words.op(str(found.op.func))))
    looked = replace(evidence.found(case, found), method="watch")
    if isinstance(found.op, Watched):
        looked = replace(looked, facts={**looked.facts, **found.op.remembered})
    looked = with_heard(looked)
    if looked.phase == "optimizer" and looked.source == OP and watch.marks.is_before_update(found.op.index):
        looked = replace(looked, facts={**looked.facts, "beside_update": True})
    made = found.op.step if isinstance(found.op, Watched) else watch.step
    return looked if made == watch.step else replace(looked, facts={**looked.facts, "made_at_step": made})


def _last_numbers(watch: OpWatch) -> list[Op]:
    """Return the last op of an unfinished forward that made a bad single number: the loss, as a rule."""
    numbers = [op for op in watch.bad_ops() if op.index >= watch.marks.last_backward and op.makes_bad_number]
    return [max(numbers, key=lambda op: op.index)] if numbers else []


def _origin(watch: OpWatch, ends: list[Op]) -> Finding | None:
    _tell_phases(watch, ends)
    return origin(ends)


def _tell_phases(watch: OpWatch, ends: Sequence[Op]) -> None:
    for op in ancestors(list(ends)):
        if not op.spot.phase:
            op.spot = replace(op.spot, phase=watch.marks.phase(op.index))


_FROM_NUMBER = (
    "{} was given a number of Python's that is not finite, and this is the origin of the last such values that were "
    "seen before it"
)


def _by_way_of_python(watch: OpWatch, found: Finding) -> Finding | None:
    """A number that was read to Python (``.tolist()``) and given to an op again comes of what was bad before that."""
    given = {**scalars_of(found.op), **(found.op.remembered if isinstance(found.op, Watched) else {})}
    numbers = [words.as_number(word) for name, word in given.items() if not name.startswith(("float64", "dtype"))]
    bad = next((one for one in numbers if one is not None and not math.isfinite(one)), None)
    if found.source != OP or not found.op.born or bad is None:
        return None
    earlier = [one for one in watch.bad_ops() if one.index < found.op.index and _may_be_read(one)]
    before = _origin(watch, [max(earlier, key=lambda op: op.index)]) if earlier else None
    if before is None or before.source != OP or before.op.constant:
        return None
    if isinstance(before.op, Watched):
        before.op.tell()
    return before


def _may_be_read(op: Op) -> bool:
    """Whether a bad number may have been read off what it wrote: none where a bound has made that finite again."""
    return any(map(_is_value, op.outputs)) and not (isinstance(op, Watched) and op.cured and not op.read)


def _is_value(stat: Stat | None) -> bool:
    """Whether it is more than a mask of -inf."""
    return stat is not None and (stat.nan or stat.posinf)

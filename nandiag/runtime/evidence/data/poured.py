"""What an in-place write was given that is not made again, because what it left is there all the same (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.runtime.evidence.walk import Finding, origin
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.tape.packed.words import Made

if TYPE_CHECKING:
    from nandiag.runtime.replay.rerun import Rerun
    from nandiag.runtime.replay.trace.tracer import Tracer
    from nandiag.runtime.tape.entry import Entry


def poured(tracer: Tracer, result: Rerun, write: Entry | None) -> Finding | None:
    """Return the op that made what the ``write`` put there bad, where that was computed again and is bad again."""
    given = () if write is None else (*write.args[1:], *write.kwargs.values())
    made = [
        outputs[word.index]
        for word in given
        if type(word) is Made and word.index < len(outputs := result.outputs.get(id(word.entry), []))
    ]
    return made_by(tracer, filter(is_bad, made))


def made_by(tracer: Tracer, made: Iterable[Tensor]) -> Finding | None:
    """Return the op that the values of what was ``made`` again go back to; None where it is none of this step."""
    found = origin([op for op in map(tracer.writer, made) if op is not None])
    return found if found is not None and found.source == "op" else None

"""What an in-place write was given that is not made again, because what it left is there all the same (worker)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
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


def laid_over(found: Finding, copied: Callable[[Tensor], Finding | None]) -> Finding:
    """Return the op that made the +Inf which ``found`` met, where the step itself wrote that before; else ``found``.

    ``copied`` finds what made a tensor that came into the step from outside. What 0 makes NaN of is the harm of a
    buffer that is infinite, not its cause; a mask that was laid is none.
    """
    taken = [one.tensor for one in found.op.outside if one.fact.posinf] if found.source == "op" else []
    makers = (one for one in map(copied, taken) if one is not None and not one.op.constant)
    made = next(makers, None)
    return found if made is None else replace(made, chain=made.chain + found.chain)


def made_by(tracer: Tracer, made: Iterable[Tensor]) -> Finding | None:
    """Return the op that the values of what was ``made`` again go back to; None where it is none of this step."""
    found = origin([op for op in map(tracer.writer, made) if op is not None])
    return found if found is not None and found.source == "op" else None

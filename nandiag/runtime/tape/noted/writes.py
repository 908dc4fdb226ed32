"""Writes of the loop's own into what no call of the step has made: an average of weights, a queue of states (worker).

They are noted as other calls are, and stand in their order with these when that is put on the tape.
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref as reference

from torch import Tensor
from torch.nn import Parameter

from nandiag.runtime.frames import trail
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.noted.consumed import OUTPUT, is_write
from nandiag.runtime.tape.noted.notes import versions_of
from nandiag.runtime.tape.packed.words import base_of
from nandiag.runtime.tape.state import modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Tape

_TENSORS = frozenset({Tensor, Parameter})


def may_be_noted(tape: Tape, target: Any) -> bool:
    """Whether a write into ``target`` may be: no call of this step has made that, but for such writes."""
    if not tape.jots.takes_writes or type(target) not in _TENSORS or target.requires_grad:
        return False
    base = base_of(target)
    known = tape.maker_of_gone(id(base), reference(base))
    if known is not None and known[0].step == tape.step:
        return False
    made = [note for note in tape.jots.many if note[OUTPUT] is target or note[OUTPUT] is base]
    return all(map(is_write, made))


def was_written(tape: Tape, tensor: Tensor) -> bool:
    """Whether a write into all of ``tensor`` is noted."""
    return True in [is_write(note) for note in tape.jots.many if note[OUTPUT] is tensor]


def note_write(
    tape: Tape, function: Any, words: tuple[Any, Any], frame: FrameType | None, before: tuple[Tensor, Tensor] | None
) -> bool:
    """Note a write that was made into the first of ``words``, which held ``before``; False where it is to be taped."""
    args, kwargs = words
    versions = versions_of(args, kwargs)
    if versions is None or not may_be_noted(tape, args[0]):
        return False
    entry = Entry(CALL, function, grad=False, modes=modes())
    entry.in_place, entry.trail, entry.before = True, trail(frame), before
    return tape.jots.wrote(entry, args, kwargs, versions)

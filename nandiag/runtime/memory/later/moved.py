"""``p.data = value``: what gives a tensor other memory, which no call of the tape makes again (worker)."""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import ref as reference

import torch
from torch import Tensor, nn, strided

from nandiag.runtime.frames import trail
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.packed.descent import LITTLE, is_of_little
from nandiag.runtime.tape.packed.words import Given, Made
from nandiag.runtime.tape.state import modes

# Elements of a leaf whose memory before is kept, and how many writes.
_SMALL, _MOST = 1 << 14, 256


def by_data(tensor: Tensor, value: Tensor) -> None:
    """Do ``p.data = value``, among the functions that a script calls."""
    tensor.data = value


by_data.__name__ = ".data"


class Laid:
    """``x.data = value`` once more: what stands for ``x`` is given that memory, for views of the old one stay.

    Where nothing stands for it, it keeps its own, and what it holds is put back behind the replay.
    """

    __name__ = ".data"

    def __init__(self, target: Tensor) -> None:
        self._real = id(target)

    def __call__(self, tensor: Tensor, value: Tensor) -> None:
        """Do it, past autograd."""
        with torch.no_grad():
            if id(tensor) == self._real:
                tensor.copy_(value)
            else:
                tensor.data = value.detach()


class Moved:
    """The newest of these writes, of two steps at most, each as an entry of the tape that writes into ``p``."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._entries: deque[Entry] = deque(maxlen=_MOST)
        self.alike = False

    def gives(self, target: Tensor, value: Tensor, frame: Any) -> tuple[Tensor, Tensor] | None:
        """``target.data = value`` is about to be done: return what a tensor without gradients held, where it is little.

        A leaf is given other memory again by itself.
        """
        self.alike = False
        if target.requires_grad:
            self.note(target, value, frame)
            return None
        self.alike = is_given_alike(target, value)
        return (target, target.detach()) if self.alike and target.numel() <= _SMALL else None

    def is_alone(self, value: Tensor) -> bool:
        """Whether the ``value`` that was given newest fits, and nothing else lies in its memory."""
        return self.alike and _owners(value) == len(("value", "target"))

    def note(self, target: Tensor, value: Tensor, frame: Any) -> None:
        """``target.data = value`` is about to be done by the script in ``frame``."""
        tape, entry = self._tape, Entry(CALL, by_data, grad=False, modes=modes())
        entry.in_place, entry.trail, entry.args = True, trail(frame), (Given(target, strong=False),)
        entry.step, entry.number = tape.step, tape.next_number()
        if is_leaf_of_script(target) and target.numel() <= _SMALL:
            entry.before = target, target.detach()  # nothing else has that memory when this is over
        made = tape.maker(value) if value.layout is strided and value.nbytes <= LITTLE else None
        if made is not None and is_of_little(made[0]):
            entry.args, entry.words = (*entry.args, Given(value, strong=True)), [Made(*made, reference(value))]
            tape.hold_update(entry, (target,))
        elif entry.before is not None and isinstance(target, nn.Parameter):  # put back after a look at other weights
            entry.args, entry.words = (*entry.args, Given(value, strong=True)), [Given(value, strong=True)]
        while self._entries and self._entries[0].step < tape.step - 1:
            self._entries.popleft()
        self._entries.append(entry)

    def in_step(self, step: int) -> list[Entry]:
        """Return those of the step, oldest first."""
        return [entry for entry in tuple(self._entries) if entry.step == step]

    def all(self) -> list[Entry]:
        """Return all that are known, oldest first."""
        return list(self._entries)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


def is_leaf_of_script(target: Tensor) -> bool:
    """Whether it is a weight, or a plain tensor that gradients are gathered for."""
    return type(target) in {Tensor, nn.Parameter} and target.requires_grad


def _owners(tensor: Tensor) -> int:
    """Return how many tensors lie in its memory."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # but for what was asked here


def is_given_alike(target: Tensor, value: Tensor) -> bool:
    """Whether what ``target`` is given could be written into it as well, with the same values left there."""
    plain = type(target) in {Tensor, nn.Parameter} and type(value) in {Tensor, nn.Parameter}
    alike = (target.shape, target.dtype, target.device) == (value.shape, value.dtype, value.device)
    return plain and alike and target.layout is strided and value.layout is strided

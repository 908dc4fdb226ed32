"""What short steps did, jotted down as it was given, and put on the tape only when somebody reads that (worker).

Nearly every step ends well, and nobody ever asks what it did. Where a step takes long enough, packing its calls costs
nothing to speak of, and to hold their outputs would cost memory; where it is short it is the other way round. So there
arguments and outputs are held as they are until the step ends, a few calls at most, and then dropped unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor
from torch.nn import Parameter

from nandiag.runtime.tape.packed.words import PLAIN

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Entry, Tape

MOST = 24
LARGEST = 1 << 16
# Steps, in seconds: on the CPU a step of this length can make some megabytes, which are held a little longer.
_SHORT = 2e-3
_IN_A_ROW = 3
_IN_VAIN = 16
_TENSORS = frozenset({Tensor, Parameter})
_WORDS = PLAIN | {Size}
_version = attrgetter("_version")
_RETAINS = id(True)  # noqa: FBT003 - among the words of a backward


class Jot:
    """One call with what it was given and returned, and the versions of the tensors among its arguments.

    ``after``: their versions when it was over, where that may differ; a backward is what has no ``output``.
    """

    __slots__ = ("after", "args", "entry", "kwargs", "micro_step", "output", "versions")

    def __init__(self, entry: Entry, words: tuple[Any, Any], versions: list[int], output: Tensor | None) -> None:
        self.entry = entry
        self.args, self.kwargs = words
        self.versions = versions
        self.output = output
        self.after: list[int] | None = None
        self.micro_step = 0

    def ended(self, output: Tensor) -> None:
        """It is over, and returned ``output``: did it write into what it was given?"""
        self.after = versions_of(self.args, self.kwargs)
        self.output = output


class Jots:
    """The calls of the present step that are not on the ``tape`` yet, while ``on``: steps are short and end well."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.on = False
        self.many: list[Jot] = []
        self._in_a_row = self._in_vain = 0

    def add(self, entry: Entry, words: tuple[Any, Any], versions: list[int], output: Tensor | None = None) -> None:
        """Note a call of flat arguments."""
        if len(self.many) >= MOST:
            self.settle()
        jot = Jot(entry, words, versions, output)
        jot.micro_step = self._tape.micro_step
        self.many.append(jot)

    def settle(self) -> None:
        """Put all that was noted on the tape."""
        if not self.many:
            return
        many, self.many = self.many, []
        tape = self._tape
        now = tape.micro_step
        for jot in many:
            tape.micro_step = jot.micro_step
            tape.add(jot.entry, jot.args, jot.kwargs)
            for word, version, after in zip(jot.entry.words, jot.versions, jot.after or jot.versions, strict=True):
                word.used(version, after)
            if jot.output is not None:
                tape.made(jot.entry, (jot.output,))
        tape.micro_step = now

    def may_wait(self, words: Sequence[Any], output: Tensor) -> bool:
        """Whether to note a call without gradients holds little memory, and no graph that is not held already."""
        if output.requires_grad:
            return False
        for word in words:
            if isinstance(word, Tensor):
                graph = word.requires_grad and not any(jot.output is word for jot in self.many)
                if graph or word.numel() > LARGEST:
                    return False
        return True

    def last(self, entry: Entry) -> Jot | None:
        """Return the jot of ``entry`` where it is the newest, None where it was put on the tape already."""
        newest = self.many[-1] if self.many else None
        return newest if newest is not None and newest.entry is entry else None

    def step_took(self, seconds: float) -> None:
        """A step is over: change one's mind after a few in a row that are of the other sort."""
        if (seconds < _SHORT) is self.on or self._in_vain >= _IN_VAIN:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW:
            self.on, self._in_a_row = not self.on, 0

    def step_ends(self, *, alone: bool) -> None:
        """Drop what nobody has asked for, and nobody can any more; ``alone``: the tape has no other graph."""
        if alone and _all_consumed(self.many):
            self.many.clear()
            self._in_vain = 0
            return
        self.settle()
        self._in_vain += 1
        self.on = self.on and self._in_vain < _IN_VAIN


def versions_of(args: Sequence[Any], kwargs: Any) -> list[int] | None:
    """Return the versions of the tensors among flat arguments; None where any may be changed behind one's back."""
    words = (*args, *kwargs.values()) if kwargs else args
    tensors = []
    for word in words:
        kind = type(word)
        if kind in _TENSORS:
            tensors.append(word)
        elif kind not in _WORDS:
            return None
    try:
        return list(map(_version, tensors))
    except RuntimeError:  # tensors made for inference have none
        return None


def _all_consumed(many: Sequence[Jot]) -> bool:
    """Whether each call with a gradient is one that a backward went through, and of which it left no graph."""
    used: set[int] = set()
    for jot in reversed(many):
        entry = jot.entry
        if not entry.grad:
            continue
        given = {*map(id, jot.args), *map(id, jot.kwargs.values())} if jot.kwargs else set(map(id, jot.args))
        if jot.output is None:
            if _RETAINS in given:
                return False
        elif id(jot.output) not in used:
            return False
        used |= given
    return True

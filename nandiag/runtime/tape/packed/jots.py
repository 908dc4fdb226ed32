"""What short steps did, jotted down as it was given, and put on the tape only when somebody reads that (worker).

Nearly every step ends well, and nobody ever asks what it did. Where a step takes long enough, packing its calls costs
nothing to speak of, and to hold their outputs would cost memory; where it is short it is the other way round. So there
arguments and outputs are held as they are until the step ends, a few calls at most, and then dropped unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
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
_FLAT = PLAIN | {Tensor, Parameter, Size}
_VERSION, _NONE = repeat("_version"), repeat(None)
_RETAINS = id(True)  # noqa: FBT003 - among the words of a backward


Versions = Sequence[int | None]


class Jots:
    """The calls of the present step that are not on the ``tape`` yet, while ``on``: steps are short and end well."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.on = False
        self.many: list[Entry] = []
        self._in_a_row = self._in_vain = 0

    def add(self, entry: Entry, words: tuple[Any, Any], versions: Versions, output: Tensor | None = None) -> None:
        """Note a call of flat arguments with their versions, and its output; a backward has none, nor a root yet."""
        if len(self.many) >= MOST:
            self.settle()
        entry.args, entry.kwargs = words
        entry.versions, entry.output = versions, output
        entry.micro_step = self._tape.micro_step
        self.many.append(entry)

    def ended(self, entry: Entry, output: Any) -> bool:
        """The call of ``entry`` is over and has returned ``output``; False where that must be put on the tape now."""
        if not self.many or self.many[-1] is not entry or type(output) is not Tensor or output.numel() > LARGEST:
            return False
        entry.after, entry.output = versions_of(entry.args, entry.kwargs), output
        return True

    def settle(self) -> None:
        """Put all that was noted on the tape."""
        many, self.many = self.many, []
        now = self._tape.micro_step
        for entry in many:
            self._tape.micro_step = entry.micro_step
            self._put(entry)
        if many:
            self._tape.micro_step = now

    def _put(self, entry: Entry) -> None:
        words, output = (entry.args, entry.kwargs), entry.output
        entry.kwargs, entry.output = {}, None
        self._tape.add(entry, *words)
        pairs = zip(entry.versions, entry.after or entry.versions, strict=True)
        used = [(one, end) for one, end in pairs if one is not None and end is not None]
        for word, (version, after) in zip(entry.words, used, strict=True):
            word.used(version, after)
        if output is not None:
            self._tape.made(entry, (output,))

    def may_wait(self, words: Sequence[Any], output: Tensor) -> bool:
        """Whether to note a call without gradients holds little memory, and no graph that is not held already."""
        if output.requires_grad:
            return False
        for word in words:
            if isinstance(word, Tensor):
                graph = word.requires_grad and not any(entry.output is word for entry in self.many)
                if graph or word.numel() > LARGEST:
                    return False
        return True

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


def versions_of(args: Sequence[Any], kwargs: Any) -> Versions | None:
    """Return the version of each of a call's flat arguments, None for one that is no tensor.

    None at all where an argument may be changed behind one's back. Without a loop here, for every call comes by.
    """
    words = (*args, *kwargs.values()) if kwargs else args
    if not _FLAT.issuperset(map(type, words)):
        return None
    try:
        return list(map(getattr, words, _VERSION, _NONE))
    except RuntimeError:  # tensors made for inference have none
        return None


def _all_consumed(many: Sequence[Entry]) -> bool:
    """Whether each call with a gradient is one that a backward went through, and of which it left no graph."""
    used: set[int] = set()
    for entry in reversed(many):
        if not entry.grad:
            continue
        given = set(map(id, entry.args))
        if entry.kwargs:
            given.update(map(id, entry.kwargs.values()))
        if entry.output is None:
            if _RETAINS in given:
                return False
        elif id(entry.output) not in used:
            return False
        used |= given
    return True

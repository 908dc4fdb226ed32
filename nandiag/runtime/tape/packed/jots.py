"""What short steps did, jotted down as it was given, and put on the tape only when somebody reads that (worker).

Nearly every step ends well, and nobody ever asks what it did. Where a step takes long enough, packing its calls costs
nothing to speak of, and to hold their outputs would cost memory; where it is short it is the other way round. So there
arguments and outputs are held as they are until the step ends, a few calls at most, and then dropped unpacked; of calls
without gradients on tensors of a few numbers (the returns of an episode, added up one by one) some hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Size, Tensor
from torch.nn import Parameter

from nandiag.runtime.frames import trail
from nandiag.runtime.tape.packed.words import HANDS_ON, PLAIN, is_handed_on
from nandiag.runtime.tape.state import modes

if TYPE_CHECKING:
    from nandiag.runtime.tape.entries import Entry, Tape

MOST, MOST_SMALL = 24, 384
LARGEST, _SMALL = 1 << 16, 1 << 10
# Steps, in seconds: on the CPU a step of this length can make some megabytes, which are held a little longer.
_SHORT = 1e-2
_IN_A_ROW = 3
_IN_VAIN = 16
_FLAT = PLAIN | {Tensor, Parameter, Size}
_VERSION, _NONE = repeat("_version"), repeat(None)
_RETAINS = id(True)  # noqa: FBT003 - among the words of a backward


Versions = Sequence[int | None]
# One call, as it was given: the entry of a root module's, else None; the function, and whether a gradient flows
# through it; the modes, the trail; arguments by position and by name; their versions before, and behind a root; what it
# returned (None: a backward, or a root under way); the micro-step. No class of its own: five are made in each step.
Note: TypeAlias = tuple[Any, ...]
GRAD, ARGS, KWARGS, OUTPUT = 2, 5, 6, 9


class Jots:
    """The calls of the present step that are not on the ``tape`` yet, while ``on``: steps are short and end well."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.on = False
        self.many: list[Note] = []
        self._in_a_row = self._in_vain = 0
        self._more = 0  # of what is noted, how many came behind the first few and are not small

    def called(self, function: Any, words: tuple[Any, Any], output: Tensor | None, frame: FrameType | None) -> bool:
        """Note a call with its output, or a backward, which has none; False where it must be put on the tape now."""
        args, kwargs = words
        versions = versions_of(args, kwargs)
        if versions is None:
            return False
        known = modes()
        grad = output is None or (known[0] and output.requires_grad)
        if not grad and output is not None and not self.may_wait(args, output):
            return False
        if len(self.many) >= MOST and (grad or output is None or not _is_small(args, output)):
            self._another()
        if len(self.many) >= MOST_SMALL:
            self.settle()
        micro = self._tape.micro_step
        self.many.append((None, function, grad, known, trail(frame), args, kwargs, versions, None, output, micro))
        return True

    def begun(self, entry: Entry, words: tuple[Any, Any]) -> bool:
        """Note that a root module is called; False where that must be put on the tape now."""
        versions = versions_of(*words)
        if versions is None:
            return False
        if len(self.many) >= MOST:
            self._another()
        self.many.append((entry, None, entry.grad, None, None, *words, versions, None, None, self._tape.micro_step))
        return True

    def _another(self) -> None:
        """One more is to be noted that may hold some memory."""
        self._more += 1
        if self._more >= MOST:
            self.settle()

    def ended(self, entry: Entry, output: Any) -> bool:
        """The call of ``entry`` is over and has returned ``output``; False where that must be put on the tape now."""
        if not self.many or type(output) is not Tensor or output.numel() > LARGEST:
            return False
        known, *_, args, kwargs, versions, _, _, micro = self.many[-1]
        if known is not entry:
            return False
        after = versions_of(args, kwargs)
        self.many[-1] = (entry, None, entry.grad, None, None, args, kwargs, versions, after, output, micro)
        return True

    def settle(self) -> None:
        """Put all that was noted on the tape."""
        many, self.many, self._more = self.many, [], 0
        now = self._tape.micro_step
        for note in many:
            self._tape.micro_step = note[-1]
            self._put(note)
        if many:
            self._tape.micro_step = now

    def _put(self, note: Note) -> None:
        from nandiag.runtime.tape.entries import BACKWARD, CALL, Entry  # which have jots of their own

        entry, function, grad, known, where, args, kwargs, versions, after, output, _ = note
        if entry is None:
            entry = Entry(BACKWARD if output is None else CALL, function, grad=grad, modes=known)
            entry.trail = where
        self._tape.add(entry, args, kwargs)
        used = [
            (one, end)
            for one, end in zip(versions, after or versions, strict=True)
            if one is not None and end is not None
        ]
        for word, (version, end) in zip(entry.words, used, strict=True):
            word.used(version, end)
        handed_on = getattr(function, "__name__", None) in HANDS_ON and is_handed_on(output, args)
        if output is not None and not handed_on:
            self._tape.made(entry, (output,))

    def may_wait(self, words: Sequence[Any], output: Tensor) -> bool:
        """Whether to note a call without gradients holds little memory, and no graph that is not held already."""
        if output.requires_grad:
            return False
        for word in words:
            if isinstance(word, Tensor):
                graph = word.requires_grad and not any(note[OUTPUT] is word for note in self.many)
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
            self._in_vain = self._more = 0
            return
        self.settle()
        self._in_vain += 1
        self.on = self.on and self._in_vain < _IN_VAIN


def _is_small(words: Sequence[Any], output: Tensor) -> bool:
    return output.numel() <= _SMALL and all(one.numel() <= _SMALL for one in words if isinstance(one, Tensor))


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


def _all_consumed(many: Sequence[Note]) -> bool:
    """Whether each call with a gradient is one that a backward went through, and of which it left no graph."""
    used: set[int] = set()
    for note in reversed(many):
        if not note[GRAD]:
            continue
        given, output = [*map(id, note[ARGS])], note[OUTPUT]
        if note[KWARGS]:
            given += map(id, note[KWARGS].values())
        if _RETAINS in given if output is None else id(output) not in used:
            return False
        used.update(given)
    return True

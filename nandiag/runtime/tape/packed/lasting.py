"""What need not be what it was when it is made again, and is still there: that is what was used (worker).

What an earlier step made and a later one uses is such, for weights may have moved on since; and what others than torch
may have written into.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, strided

from nandiag.runtime.leaves import BUILT_IN
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.memory.there import all_there, storage_of
from nandiag.runtime.tape.packed.words import Given, Made, base_of

if TYPE_CHECKING:
    from nandiag.runtime.tape.entry import Entry

GONE = "what was made before an earlier update is gone, and could not be compared with what was made again"
OTHERWISE = "what was made before an earlier update did not come out as it had been"
UNSEEN = "memory that numpy, C or another rank may write into held other numbers by then"
ANEW = (
    "where it had been finite it gave other numbers, so that something went in which could not be put back, such as a "
    "generator or a counter of the script's own"
)
# Of the largest there is: what is added up in another order each time is not.
_FAR = 0.01
_MOST = 1 << 22


class Lasting:
    """What the calls among ``entries`` gave to those of later steps, or made of what was ``exposed`` to others."""

    def __init__(
        self, entries: Sequence[Entry], exposed: Iterable[Callable[[], Tensor | None]] = (),
        brought: Container[int] = (), *, mended: bool = False,
        others_wrote: Callable[[Tensor], object] | None = None,
    ) -> None:  # fmt: skip
        self._others_wrote = others_wrote  # is told of what holds harm that others than torch wrote there
        self._brought = brought  # memory that the script has: nothing is written there
        self._mended = mended  # what was bad is not to come back
        self._newest = max((entry.step for entry in entries), default=0)
        self._words: dict[int, dict[int, Made]] = {}
        self._exposed = {id(one) for held in tuple(exposed) if (one := held()) is not None}
        for word in (*_used_later(entries), *self._seen_by_others(entries)):
            self._words.setdefault(id(word.entry), {})[word.index] = word
        # By which entry a tensor was written into last, by its ``id``: by then it was not what had been made.
        written = ((entry.number, entry.args[0]) for entry in entries if entry.in_place and entry.args)
        self._written = {id(base_of(one)): number for number, word in written if (one := _tensor(word)) is not None}

    def is_earlier(self, entry: Entry) -> bool:
        """Whether a call is of an earlier step than the one that is run again."""
        return entry.step < self._newest

    def put_right(self, entry: Entry, outputs: Sequence[Tensor]) -> set[str]:
        """Give what ``entry`` has made again the numbers that later steps used; return what is in doubt of them."""
        return {
            doubt
            for index, word in self._words.get(id(entry), {}).items()
            if (doubt := self._put_right(word, outputs[index] if index < len(outputs) else None)) is not None
        }

    def _put_right(self, word: Made, again: Tensor | None) -> str | None:
        real = word.tensor()
        exposed = id(real) in self._exposed
        since = self._is_written_since(word, real)
        if real is None or again is None or since or not _can_be_compared(real, again):
            return None if exposed and since else GONE
        if torch.equal(real, again) or (self._mended and is_bad(real)):
            return None
        if storage_of(again) not in self._brought:
            others = exposed and is_bad(real) and not is_bad(again)
            again.data.copy_(real.data)  # by no write that a graph would see
            if others and self._others_wrote is not None:
                self._others_wrote(again)
        return UNSEEN if exposed else OTHERWISE

    def _seen_by_others(self, entries: Sequence[Entry]) -> list[Made]:
        words = (word for entry in entries for word in entry.words if type(word) is Made) if self._exposed else ()
        return [word for word in words if id(word.tensor()) in self._exposed]

    def _is_written_since(self, word: Made, real: Tensor | None) -> bool:
        return real is not None and self._written.get(id(base_of(real)), -1) > word.entry.number


def _used_later(entries: Sequence[Entry]) -> list[Made]:
    words = [(entry, word) for entry in entries for word in entry.words if type(word) is Made and not word.taken]
    return [word for entry, word in words if word.entry.step < entry.step]


def _tensor(word: object) -> Tensor | None:
    return word.tensor() if type(word) is Made else None


def _can_be_compared(real: Tensor, again: Tensor) -> bool:
    plain = type(real) in BUILT_IN and type(again) in BUILT_IN and real.layout is again.layout is strided
    return plain and real.shape == again.shape and real.dtype is again.dtype and all_there((real, again))


def came_otherwise(
    entries: Sequence[Entry], outputs: Mapping[int, Sequence[Tensor]], instead: Mapping[int, object] | None = None
) -> bool:
    """Whether what calls made with a graph, and what of it is still there, is finite and another than was made again.

    Something went in then that nobody has kept: the state of a generator, say, that a forward draws from. What was made
    of a tensor that another stands in for, by its ``id``, is another by that: the loss with its scale, say.
    """
    newest = max((entry.step for entry in entries), default=0)
    words = {id(word.tensor()): word for entry in entries for word in entry.words if type(word) is Made}
    own = [word for word in words.values() if word.entry.step == newest and word.entry.grad and not word.entry.in_place]
    other = _made_of(entries, instead) if own and instead else set[int]()
    return any(_is_another(word, outputs.get(id(word.entry), ())) for word in own if id(word.entry) not in other)


def _made_of(entries: Sequence[Entry], tensors: Container[int]) -> set[int]:
    """Return which ``entries``, by ``id``, were given one of the ``tensors``, or what was made of them."""
    made: set[int] = set()
    for entry in entries:
        if any((type(word) is Made and id(word.entry) in made) or id(_held(word)) in tensors for word in entry.words):
            made.add(id(entry))
    return made


def _held(word: Any) -> Tensor | None:
    return word.tensor() if type(word) is Made else word.get() if type(word) is Given else None


def _is_another(word: Made, outputs: Sequence[Tensor]) -> bool:
    real, again = word.tensor(), outputs[word.index] if word.index < len(outputs) else None
    if real is None or again is None or not _can_be_compared(real, again) or not real.dtype.is_floating_point:
        return False
    some, others = (one.detach().flatten()[:_MOST] for one in (real, again))
    both = some.isfinite() & others.isfinite()
    one, other = (numbers[both].to(torch.promote_types(real.dtype, torch.float32)) for numbers in (some, others))
    return bool(one.numel()) and bool(((one - other).abs() > _FAR * one.abs().max()).any())

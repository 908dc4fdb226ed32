"""What the script hands an update itself, as ``step(loss)``: kept until the next one, to make it again with (worker).

Numbers and a few small tensors by their values as the update begins; other tensors weakly, and good for as long as
nothing wrote into them. A callable, or another object, is the script's: an update that needs one is not made again.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.packed.words import PLAIN, version_of

_MOST_ELEMENTS = 1024
_MOST_COPIES, _MOST, _DEEPEST = 8, 1024, 4
_GONE = "what the script gave the update is not there any more as it was"
UNKNOWN = "the update needs what only the script can give it, as a closure that brings the gradients"
Again = Callable[[], Any]


class Words(NamedTuple):
    """The arguments of an update behind the optimizer itself; ``descends``: one had a graph, which is not kept."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    descends: bool


class Given:
    """Remembers of each optimizer that is given anything but a closure what its newest update was given."""

    def __init__(self) -> None:
        self._known: MutableMapping[Optimizer, tuple[Again, Again, bool]] = WeakIdKeyDictionary()

    def __bool__(self) -> bool:
        """Whether any optimizer is given anything."""
        return bool(self._known)

    def begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An update begins, given the optimizer itself and what else ``args`` and ``kwargs`` hold."""
        self._known.pop(optimizer, None)
        words = (*args[1:], *kwargs.values())
        if all(word is None or callable(word) for word in words):
            return
        with quiet():
            pack = _Pack()
            packed = pack.of(args[1:]), pack.of(kwargs)
        self._known[optimizer] = (*packed, pack.descends)

    def forget(self) -> None:
        """An update begins that is given nothing."""
        self._known.clear()

    def of(self, optimizer: Optimizer) -> Words | None:
        """Return what the newest update was given, None for nothing; raises Refused where it is not to be had."""
        known = self._known.get(optimizer)
        return None if known is None else Words(known[0](), known[1](), known[2])


class _Pack:
    """Keeps what one update is given: so much at most, for each update pays for it."""

    def __init__(self) -> None:
        self._copies, self._left = _MOST_COPIES, _MOST
        self.descends = False  # of what is refused nobody asks it

    def of(self, thing: Any, depth: int = 0) -> Again:
        """Return what gives ``thing`` again as it is now, or raises Refused."""
        self._left -= 1
        if isinstance(thing, Tensor):
            return self._of_tensor(thing)
        if type(thing) in PLAIN or isinstance(thing, int | float | complex | str):
            return lambda: thing
        if depth < _DEEPEST and type(thing) in {list, tuple, dict} and len(thing) <= self._left:
            return self._of_members(thing, depth + 1)
        return _refused

    def _of_tensor(self, thing: Tensor) -> Again:
        self.descends |= thing.requires_grad
        if self._copies and thing.numel() <= _MOST_ELEMENTS and type(thing) is Tensor:
            self._copies -= 1
            return partial(_copy, thing.detach().clone())
        return partial(_as_it_was, Weakly(thing), version_of(thing))

    def _of_members(self, thing: Any, depth: int) -> Again:
        if type(thing) is dict:
            members = {key: self.of(one, depth) for key, one in thing.items()}
            return lambda: {key: member() for key, member in members.items()}
        parts, kind = [self.of(one, depth) for one in thing], type(thing)
        return lambda: kind(part() for part in parts)


def _copy(value: Tensor) -> Tensor:
    return value.clone()  # the update may write into it, and be made several times


def _as_it_was(reference: Callable[[], Tensor | None], version: int) -> Tensor:
    held = reference()
    if held is None or version_of(held) != version:
        raise Refused(_GONE)
    return held.detach()


def _refused() -> Any:
    raise Refused(UNKNOWN)


GIVEN = Given()

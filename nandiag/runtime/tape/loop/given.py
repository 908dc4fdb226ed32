"""What the script hands an update itself, as ``step(loss)``: kept until the next one, to make it again with (worker).

Numbers and small tensors by their values as the update begins; larger tensors weakly, and good for as long as nothing
wrote into them. A callable, or any other object, is the script's: an update that needs one cannot be made again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.tape.packed.words import PLAIN, version_of

_MOST = 1024
_DEEPEST = 4
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
            packed = _packed(args[1:], 0), _packed(kwargs, 0)
        self._known[optimizer] = (*packed, _descends((args[1:], kwargs), 0))

    def forget(self) -> None:
        """An update begins that is given nothing."""
        self._known.clear()

    def of(self, optimizer: Optimizer) -> Words | None:
        """Return what the newest update was given, None for nothing; raises Refused where it is not to be had."""
        known = self._known.get(optimizer)
        return None if known is None else Words(known[0](), known[1](), known[2])


def _packed(thing: Any, depth: int) -> Again:
    """Return what gives ``thing`` again as it is now, or raises Refused."""
    if isinstance(thing, Tensor):
        if thing.numel() <= _MOST and type(thing) is Tensor:
            return partial(_copy, thing.detach().clone())
        return partial(_as_it_was, weakref.ref(thing), version_of(thing))
    if type(thing) in PLAIN or isinstance(thing, int | float | complex | str):
        return lambda: thing
    if type(thing) in {list, tuple} and depth < _DEEPEST and len(thing) <= _MOST:
        parts, kind = [_packed(one, depth + 1) for one in thing], type(thing)
        return lambda: kind(part() for part in parts)
    if type(thing) is dict and depth < _DEEPEST and len(thing) <= _MOST:
        members = {key: _packed(one, depth + 1) for key, one in thing.items()}
        return lambda: {key: member() for key, member in members.items()}
    return _refused


def _copy(value: Tensor) -> Tensor:
    return value.clone()  # the update may write into it, and be made several times


def _as_it_was(reference: Callable[[], Tensor | None], version: int) -> Tensor:
    held = reference()
    if held is None or version_of(held) != version:
        raise Refused(_GONE)
    return held.detach()


def _refused() -> Any:
    raise Refused(UNKNOWN)


def _descends(thing: Any, depth: int) -> bool:
    if isinstance(thing, Tensor):
        return thing.requires_grad
    if depth > _DEEPEST:
        return False
    members = thing.values() if type(thing) is dict else thing if type(thing) in {list, tuple} else ()
    return any(_descends(one, depth + 1) for one in members)


GIVEN = Given()

"""A call that made bad values of finite ones is kept, to be made again when harm asks for the op within it (worker).

What it was given is copied, a tensor that it wrote into by numbers of its size. Most such calls make masks, and are
never made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.births.files.plain import are_plain, is_torchs_own
from nandiag.runtime.births.known import OP, Birth, Call
from nandiag.runtime.births.parts.place import place_of
from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of, scalars_of
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import BOUNDARIES, Frame
from nandiag.runtime.guard import Refused
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.update.instead import stand_in
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.state import generators

_PLAIN = (Tensor, torch.nn.Parameter)
# These call the script's own functions, or do more than to compute what they return.
_NOT = frozenset({"apply_", "map_", "map2_", "__setstate__", "__deepcopy__", "__reduce_ex__", "backward"})


class Words(NamedTuple):
    """A function, what it was given, and the tensor of these that it wrote into, if any."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor | None


class Kept:
    """A call to be made again. ``sure``: all that is bad in what it wrote is its own, for it was given finite values.

    ``before`` is what was known of the memory that it wrote into, where something of that is left, and ``came`` what
    is known of what it was given bad. ``cleared``: made again, it made nothing bad, so that
    what is bad came by a write that was not seen (numpy's, C's). ``place`` is where it wrote into memory.
    """

    __slots__ = ("_made", "before", "call", "came", "cleared", "place", "ran", "size", "sure", "words")

    def __init__(self, call: Call, words: Words, known: tuple[Any, Any], *, sure: bool, most: int) -> None:
        self.call = call
        self.sure = sure
        self.cleared = self.ran = False
        self.before, self.came = known
        self._made: tuple[Birth | None] | None = None
        self.place = None if words.target is None else place_of(words.target)
        given = tensors_in((words.args, words.kwargs))
        self.size = sum(one.numel() for one in given)
        keeps = self.size <= most and _may(call, words, given)
        self.words = _copied(words) if keeps else None
        self.size = self.size if keeps else 0

    def wrote(self, byte: int | None) -> bool | None:
        """Whether it was this call that wrote the element at ``byte`` of its memory bad; None where that is not known.

        Must be called without gradients.
        """
        if self.sure or self.place is None:
            return True if self.sure else None
        self.birth()
        index = None if byte is None else self.place.index_of(byte)
        if index is None or not self.ran or self.words is None or self.words.target is None:
            return None
        return not bool(self.words.target[index].isfinite())

    def birth(self) -> Birth | None:
        """Make the call again, once; returns the birth with the op that shows, None where none does and it is not sure.

        Must be called without gradients; leaves generators as they are.
        """
        if self._made is None:
            self._made = (self._make(),)
        return self._made[0]

    def _make(self) -> Birth | None:
        self.ran, op = (False, None) if self.words is None else _made_again(self.call, self.words)
        self.cleared = self.ran and op is None and not self.sure
        if op is None:
            return Birth(OP, self.call) if self.sure else None
        facts = {**scalars_of(op), **in_float64(op)}
        if self.words is not None and self.words.target is not None:
            facts["stood_in"] = True
        return Birth(OP, self.call, str(op.func), inputs_of(op), outputs_of(op), facts)


def _made_again(call: Call, words: Words) -> tuple[bool, Op | None]:
    """Return whether the call could be made again, and the op within it that made bad values of finite ones."""
    tracer = Tracer({}, joint=False)
    tracer.spots.base = Spot(None, None, tuple(map(Frame._make, call.places)), "init", 0)
    try:
        states = generators(full=False)
        try:
            with torch.no_grad(), tracer:
                output = words.function(*words.args, **words.kwargs)
        finally:
            states.put_back()
    except (Exception, Refused):  # a call that cannot be made again shows nothing
        return False, None
    ends = [
        op
        for op in map(tracer.writer, [*tensors_in(output), *([] if words.target is None else [words.target])])
        if op is not None
    ]
    found = origin(ends)
    return True, found.op if found is not None and found.source == OP else None


BOUNDARIES.add(id(_made_again.__code__))


def _may(call: Call, words: Words, given: list[Tensor]) -> bool:
    if call.name in _NOT or any(type(one) not in _PLAIN for one in given) or not all_there(given):
        return False  # what a subclass does (DTensor) may ask other ranks
    return is_torchs_own(words.function) and are_plain(words.args, words.kwargs)


def _copied(words: Words) -> Words:
    held: dict[int, Tensor] = {}
    args, kwargs = _copies(words.args, words, held), _copies(words.kwargs, words, held)
    return Words(words.function, args, kwargs, None if words.target is None else held.get(id(words.target)))


def _copies(thing: Any, words: Words, held: dict[int, Tensor]) -> Any:
    if isinstance(thing, Tensor):
        if id(thing) not in held:
            held[id(thing)] = thing.detach().clone()
            if thing is words.target and thing.is_floating_point():
                stand_in(held[id(thing)])
        return held[id(thing)]
    if type(thing) in (tuple, list):
        return type(thing)(_copies(item, words, held) for item in thing)
    if type(thing) is dict:
        return {key: _copies(item, words, held) for key, item in thing.items()}
    return thing

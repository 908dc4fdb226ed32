"""What memory would hold had no digits been lost, beside what it holds, handed on with it from op to op (worker).

An op that broke did so by the loss where the very same op stays finite on what would be there without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.guard import disarm
from nandiag.runtime.memory.lost.integers import differs, each, fits, left, operands, whole, wide, widened
from nandiag.runtime.memory.lost.squares import Squares
from nandiag.runtime.memory.there import all_there, storage_of
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.packed.nested import tensors_in

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

_PROBE = "digits"
WRAPPED, CANCELLED = "wrapped", "cancelled"
Held = tuple[int, Tensor]
# By their names without underscores at both ends. Torch itself marks the ops on single elements; these look at their
# first argument, join or add up.
_HAND_ON = frozenset({
    "view", "unsafe_view", "reshape", "reshape_alias", "select", "slice", "t", "transpose", "permute", "expand",
    "unsqueeze", "squeeze", "alias", "detach", "clone", "to_copy", "stack", "cat", "split", "split_with_sizes",
    "unbind", "index", "index_select", "gather", "as_strided", "sum", "mean", "cumsum", "amax", "amin", "flatten",
    "repeat", "lift_fresh",
})  # fmt: skip
# What is left of a number behind these is not what it was: a wrapped one was often meant to be.
_MODULAR = ("bitwise_", "remainder", "fmod", "and", "or", "xor", "rshift", "floor_divide", "sign", "logical_")
_PICKS = frozenset({"index", "index_select", "gather"})  # by numbers: others would be out of reach
_DIVIDES = frozenset({"div", "true_divide", "divide"})
_MOST, _MOST_NUMBERS, _MOST_LOST = 256, 1 << 22, 4


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """The op that lost digits, how, in which dtype, and numbers that tell of it."""

    how: str
    op: Op
    dtype: str
    numbers: dict[str, object]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What would be where a tensor lies, and the ops that lost it, the first one first."""

    tensor: Tensor
    lost: tuple[Lost, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """What an op gives on shadows, or on wider integers: ``whole`` tells that all it was given are integers."""

    outputs: list[Tensor]
    lost: tuple[Lost, ...]
    whole: bool


class Shadows:
    """The shadows of tensors, by the memory that they lie in and their place there."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[Any, ...], Shadow]] = {}
        self._squares = Squares()

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> Again | None:
        """An op is about to run: run it on what would be there. None where that is the same, or not known."""
        if func.namespace != "aten" or not given or _PROBE in RECORDER.darkened:
            return None
        try:
            return self._again(func, args, kwargs, given)
        except (RuntimeError, TypeError, ValueError, IndexError):  # it does not take such numbers
            return None
        except Exception as error:
            disarm(_PROBE, error)
            return None

    def ran(self, op: Op, again: Again | None, given: Sequence[Held], out: Sequence[Held]) -> None:
        """``op`` has run, and gave ``out``: tell it who lost the digits by which it broke, and keep the shadows."""
        if _PROBE in RECORDER.darkened:
            return
        mutable = op.func._schema.is_mutable
        for key, _ in out if mutable else ():
            self._of.pop(key, None)
        try:
            self._ran(op, again, given, out)
        except Exception as error:
            disarm(_PROBE, error)

    def written(self, key: int) -> None:
        """Somebody else writes into this memory."""
        self._of.pop(key, None)

    def _again(self, func: Any, args: Any, kwargs: dict[str, Any], given: list[Tensor]) -> Again | None:
        name, mutable = _short(func), bool(func._schema.is_mutable)
        shadows = [self._shadow(one) for one in given] if self._of else []
        known = [one for one in shadows if one is not None]
        dtype = widened(name, given, kwargs, mutable=mutable)
        if (dtype is None and not _hands_on(func, name, shadows)) or not all_there(given) or "out" in kwargs:
            return None

        def put(thing: Any) -> Any:
            if not isinstance(thing, Tensor):
                return thing if dtype is None else wide(thing, dtype)
            shadow = self._shadow(thing) if known else None
            found = thing if shadow is None else shadow.tensor
            found = found if dtype is None else wide(found, dtype)
            return found.clone() if mutable else found

        asked = None if dtype is not None else whole(kwargs.get("dtype"))
        kept = kwargs if asked is None else {**kwargs, "dtype": known[0].tensor.dtype}
        outputs = tensors_in(func(*each(args, put), **each(kept, put)))
        if asked is not None and not all(fits(one, asked) for one in outputs):
            return None  # it is cast into what does not hold it either
        # By what is divided a quotient is not made infinite: the divisor's stand first.
        known = known[::-1] if name in _DIVIDES else known
        lost = tuple(dict.fromkeys(one for shadow in known for one in shadow.lost))
        return Again(outputs, lost[:_MOST_LOST], dtype is not None)

    def _ran(self, op: Op, again: Again | None, given: Sequence[Held], out: Sequence[Held]) -> None:
        if again is None:
            cancelled = self._squares.left_of(op, given, out)
            if cancelled is not None:
                numbers: dict[str, object] = {"of": cancelled[1]}
                lost = Lost(CANCELLED, op, _name(out[0][1]), numbers)
                self._keep(*out[0], Shadow(cancelled[0], (lost,)))
        elif len(again.outputs) == len(out):
            if any(op.outputs) and op.born and all(bool(one.isfinite().all()) for one in again.outputs):
                op.lost = again.lost
            for exact, (key, tensor) in zip(again.outputs, out, strict=True):
                self._hand_on(op, again, exact, (key, tensor))
        self._squares.ran(op, given, out)

    def _hand_on(self, op: Op, again: Again, exact: Tensor, to: Held) -> None:
        tensor, lost = to[1], again.lost
        if exact.shape != tensor.shape or tensor.dtype is torch.bool or not differs(exact, tensor):
            return
        if again.whole:
            ends = left(exact, tensor)
            if ends is None:
                return
            told: dict[str, object] = {"least": ends[0], "most": ends[1], **_operands(op)}
            lost = (*lost, Lost(WRAPPED, op, _name(tensor), told))
        self._keep(*to, Shadow(exact, lost))

    def _shadow(self, tensor: Tensor) -> Shadow | None:
        places = self._of.get(storage_of(tensor)) if tensor.layout is torch.strided else None
        return None if places is None else places.get(_place(tensor))

    def _keep(self, key: int, tensor: Tensor, shadow: Shadow) -> None:
        if tensor.layout is not torch.strided or shadow.tensor.numel() > _MOST_NUMBERS:
            return
        self._of.setdefault(key, {})[_place(tensor)] = shadow
        held = [one.tensor.numel() for places in self._of.values() for one in places.values()]
        while len(held) > _MOST or sum(held) > _MOST_NUMBERS:
            held = held[len(self._of.pop(next(iter(self._of)))) :]


def _operands(op: Op) -> dict[str, object]:
    return operands(_short(op.func), op.words[0] if op.words is not None else ())


def _short(func: Any) -> str:
    """Return the op's name without underscores at both ends: ``add`` of ``aten::add_``."""
    return str(func._schema.name).partition("::")[2].strip("_")


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _hands_on(func: Any, name: str, shadows: Sequence[Shadow | None]) -> bool:
    """Whether an op makes of a number what it would make of any other, so that it can be run on another one."""
    if not any(shadows) or (name in _PICKS and any(shadows[1:])) or name.startswith(_MODULAR):
        return False
    by_itself = torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
    return by_itself or name in _HAND_ON

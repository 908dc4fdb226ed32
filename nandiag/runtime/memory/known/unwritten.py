"""Memory that was handed out and that nobody has written yet: what lies in it is no value of anything (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nandiag.runtime.frames import USER, source
from nandiag.runtime.guard import sparing
from nandiag.runtime.memory.there import key_of

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op

EMPTY = frozenset({
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_", "set_",
})  # fmt: skip
# By their names without a last underscore: what they write into they read as well, or leave in parts as it is.
_PARTLY = frozenset({
    "index_put", "_index_put_impl", "index_copy", "index_fill", "index_add", "index_reduce", "scatter", "scatter_add",
    "scatter_reduce", "masked_fill", "masked_scatter", "add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp",
    "clamp", "pow",
})  # fmt: skip


class Unwritten:
    """Such memory by its key, with the op that handed it out where the script's own line called for it.

    Torch itself, and libraries, hand out memory that C++ fills unseen: nothing is said of theirs.
    """

    def __init__(self) -> None:
        self._made: dict[int, Op | None] = {}

    def __contains__(self, key: int) -> bool:
        """Whether nobody has written there yet."""
        return key in self._made

    def handed_out(self, keys: Iterable[int], op: Op) -> None:
        """``op`` has handed out this memory."""
        frame = next(iter(op.spot.frames), None)
        own = frame is not None and frame.kind == USER and "empty" in (source(frame, frame.line) or "")
        self._made.update(dict.fromkeys(keys, op if own else None))

    def written(self, keys: Iterable[int]) -> list[tuple[int, Op]]:
        """Somebody writes there: returns who handed it out, for what is left of it as it was."""
        found = [(key, self._made.pop(key)) for key in keys if key in self._made]
        return [(key, op) for key, op in found if op is not None]


def taken_for_values(func: Any, given: list[Tensor], unwritten: list[bool]) -> list[Tensor]:
    """Return those of ``given`` that an op takes for values though nobody wrote them, as far as that is certain.

    What an op reads that writes nothing may have been written by others, such as numpy, unless it is as torch fills it.
    """
    if not any(unwritten):
        return []
    if any(word.alias_info is not None for word in func._schema.arguments):  # it writes, or hands out a view
        return given[:1] if unwritten[0] and keeps_parts(func) else []
    return [one for one, bare in zip(given, unwritten, strict=True) if bare and as_filled(one) and one.isnan().all()]


def bytes_of(tensors: list[Tensor], name: str) -> int:
    """Return how many bytes there are in the memory of the first tensor that an op changes the size of, else 0."""
    if name != "resize_" or not tensors:
        return 0
    try:
        return tensors[0].untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return 0


def is_known(name: str, outputs: list[Tensor], bytes_before: int, bad: list[Any]) -> bool:
    """Whether what an op of ``EMPTY`` gives is what lay there before: it brings no memory of its own, or no more of it.

    Where it does, what was ``bad`` there before comes of whoever made it all the same.
    """
    return name == "set_" or (name == "resize_" and (any(bad) or bytes_of(outputs, name) <= bytes_before))


def renamed(name: str, outputs: list[Tensor]) -> list[int]:
    """Return the keys of memory that an op hands out though it is another's, and perhaps not among its arguments."""
    return [key_of(one) for one in outputs] if name == "set_" else []


def keeps_parts(func: Any) -> bool:
    """Whether an op that writes into memory may leave parts of it as they are, or reads it first."""
    space, _, name = func._schema.name.partition("::")
    return space == "aten" and name.endswith("_") and name.rstrip("_") in _PARTLY


def as_filled(tensor: Tensor) -> bool:
    """Whether torch fills what it hands out, and what is bad in ``tensor`` is what it fills with, which is NaN."""
    fills = getattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    if not (fills and torch.are_deterministic_algorithms_enabled() and tensor.is_floating_point()):
        return False
    return bool(tensor.numel() and not tensor.isinf().any())


def hands_out(op: Op) -> bool:
    """Whether an op handed out memory: what is bad there is what nobody wrote."""
    return op.func._schema.name.partition("::")[2] in EMPTY


@sparing
def read_at(first: Op, chain: Iterable[Op]) -> dict[str, object]:
    """Return where what ``first`` handed out and nobody wrote was first read, of what harm descends from by ``chain``.

    What only hands it on, a view or a write into a part of it, has not read it.
    """
    handed = {first.index}
    for op in chain:
        if op.index in handed or handed.isdisjoint(parent.index for parent in op.parents):
            continue
        if not any(word.alias_info is not None for word in op.func._schema.arguments):
            frame = next((one for one in op.spot.frames if one.kind == USER), None)
            return {} if frame is None else {"read_at": [frame.file, frame.line]}
        handed.add(op.index)
    return {}

"""Which tensors an op has written, also where its schema does not say so (worker)."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from nandiag.runtime.tape.packed.nested import tensors_in


def targets_of(name: str, given: list[Tensor], outputs: list[Tensor], *, mutable: bool) -> list[Tensor]:
    """Return the tensors that an op has written."""
    written = outputs if outputs or not mutable else given
    if "batch_norm" in name and "backward" not in name:
        return [*written, *given[1:]]  # running statistics are written without the schema saying so
    if name == "all_gather_copy_in":
        return outputs[:1]  # FSDP's own: this rank's part of a buffer that the others fill
    return written


def unsaid(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors that an op may write into without its schema saying so: running statistics."""
    name = func._schema.name
    return tensors_in(args[3:5]) if "batch_norm" in name and "backward" not in name else []


@functools.lru_cache(maxsize=4096)
def is_view(func: Any) -> bool:
    """Whether an op writes nothing: all that it gives lies where what it is given does."""
    aliases = [one.alias_info for one in func._schema.returns]
    return func.namespace == "aten" and bool(aliases) and all(one and not one.is_write for one in aliases)


@functools.lru_cache(maxsize=4096)
def is_lift(func: Any) -> bool:
    """Whether an op brings a Python number into a tensor: a constant, and not something from outside."""
    return bool(func._schema.name == "aten::lift_fresh")

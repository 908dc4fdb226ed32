"""Which tensors an op has written, also where its schema does not say so (worker)."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from nandiag.runtime.tape.packed.nested import tensors_in

# Running statistics are written without the schema saying so: where among an op's arguments they are. Of the last
# schemas say it, where they have any.
_STATISTICS = {
    "aten::batch_norm": slice(3, 5),
    "aten::_batch_norm_impl_index": slice(3, 5),
    "aten::native_batch_norm": slice(3, 5),
    "aten::cudnn_batch_norm": slice(3, 5),
    "aten::miopen_batch_norm": slice(3, 5),
    "aten::batch_norm_update_stats": slice(1, 3),
    "aten::batch_norm_gather_stats": slice(3, 5),
    "aten::batch_norm_gather_stats_with_counts": slice(3, 5),
    "aten::_native_batch_norm_legit": slice(3, 5),
    "aten::_batch_norm_with_update": slice(3, 5),
}


def targets_of(
    func: Any, args: tuple[Any, ...], given: list[Tensor], outputs: list[Tensor], *, mutable: bool
) -> list[Tensor]:
    """Return the tensors that an op has written."""
    written = outputs if outputs or not mutable else given
    if func._schema.name.endswith("::all_gather_copy_in"):
        return outputs[:1]  # FSDP's own: this rank's part of a buffer that the others fill
    return [*written, *unsaid(func, args)]


def unsaid(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors that an op may write into without its schema saying so: running statistics."""
    places = _STATISTICS.get(func._schema.name)
    return [] if places is None else tensors_in(args[places])


@functools.lru_cache(maxsize=4096)
def is_view(func: Any) -> bool:
    """Whether an op writes nothing: all that it gives lies where what it is given does."""
    aliases = [one.alias_info for one in func._schema.returns]
    return func.namespace == "aten" and bool(aliases) and all(one and not one.is_write for one in aliases)


@functools.lru_cache(maxsize=4096)
def is_lift(func: Any) -> bool:
    """Whether an op brings a Python number into a tensor: a constant, and not something from outside."""
    return bool(func._schema.name == "aten::lift_fresh")

"""Which tensors an op has written, also where its schema does not say so (worker)."""

from __future__ import annotations

from torch import Tensor


def targets_of(name: str, given: list[Tensor], outputs: list[Tensor], *, mutable: bool) -> list[Tensor]:
    """Return the tensors that an op has written."""
    written = outputs if outputs or not mutable else given
    if "batch_norm" in name and "backward" not in name:
        return [*written, *given[1:]]  # running statistics are written without the schema saying so
    if name == "all_gather_copy_in":
        return outputs[:1]  # FSDP's own: this rank's part of a buffer that the others fill
    return written

"""Whether the memory that a tensor lies in is there: to read what is not would end the process by a signal (worker).

FSDP lets go of what it gathered by shrinking the storage under tensors that still look whole, and a script may do the
same. Neither the version nor the address of a tensor tells. So what was kept is asked before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, ge

import torch
from torch import Tensor

from nandiag.runtime.guard import Refused

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})
_sort, _bytes = attrgetter("dtype", "device", "layout"), attrgetter("nbytes")
_storage, _storage_bytes = Tensor.untyped_storage, torch.UntypedStorage.nbytes


def held_of(tensor: Tensor) -> Tensor:
    """Return what this rank holds of ``tensor``: a DTensor's local shard, else itself. Asks no other rank."""
    held: Tensor = getattr(tensor, "_local_tensor", tensor)
    return held


def storage_of(tensor: Tensor) -> int:
    """Return the identity of the storage that this rank's part of ``tensor`` lies in; raises where it has none."""
    return int(held_of(tensor).untyped_storage()._cdata)


def key_of(tensor: Tensor) -> int:
    """Return the identity of the memory that a tensor lies in."""
    try:
        return storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def is_there(tensor: Tensor) -> bool:
    """Whether every element that this rank holds of ``tensor``, of any layout, can be read; reads none of them.

    False for meta and fake tensors too, which have no values, within vmap, and for the zeros that forward-mode AD puts
    in the place of a tangent without memory. An empty tensor is always there.
    """
    tensor = held_of(tensor)
    if tensor.layout is not torch.strided:
        return _parts_are_there(tensor)
    if not tensor.numel():
        return True
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # of a wrapper without memory of its own, as vmap hands it to a function
        return False
    return storage.device.type != "meta" and storage.nbytes() >= _reach(tensor) and not tensor._is_zerotensor()


def _parts_are_there(tensor: Tensor) -> bool:
    if tensor.device.type == "meta":
        return False
    tensor = tensor.detach()
    parts = (tensor._values(), tensor._indices()) if tensor.layout is torch.sparse_coo else (tensor.values(),)
    return all(map(is_there, parts))


def _reach(tensor: Tensor) -> int:
    """Return how many bytes of its storage a tensor that is not empty reaches into."""
    if tensor.is_contiguous():
        last = tensor.numel() - 1
    else:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def all_there(tensors: Iterable[Tensor]) -> bool:
    """Whether all of the tensors can be read, as far as torch tells."""
    try:
        return all(map(is_there, tensors))
    except (RuntimeError, NotImplementedError):  # a subclass without a storage of its own: its ops are its own affair
        return True


def alike(many: Sequence[Tensor]) -> bool:
    """Whether all are plain strided tensors of one dtype on one device that can be read, as they nearly always are.

    Asked of each gradient, weight and buffer of each step, so it is asked of all of them together, without a loop here.
    """
    if not _PLAIN_TYPES.issuperset(map(type, many)):
        return False
    sorts = set(map(_sort, many))
    if len(sorts) != 1:
        return False
    ((_, device, layout),) = sorts
    if layout is not torch.strided or device.type == "meta":
        return False
    # Not an expanded one, nor one that FSDP freed when it had gathered it: reading that would end the process.
    return all(map(ge, map(_storage_bytes, map(_storage, many)), map(_bytes, many)))


def demand(tensors: Iterable[Tensor]) -> None:
    """Raise Refused where the memory of one of the tensors was let go of, so that running again would end badly."""
    if not all_there(tensors):
        raise Refused("memory that the step used has been let go of")

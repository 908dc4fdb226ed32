"""Whether tensors are all finite, by one number a group, and what a tensor looks like when it is not (worker).

The filter is the 2-norm: it is finite only when every element is. Where it is not, each tensor is looked at exactly,
for large finite values overflow a norm too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nandiag.events import TensorFact
from nandiag.runtime.memory.there import alike, held_of, is_there

Tensor: TypeAlias = torch.Tensor
_HALF = (torch.float16, torch.bfloat16)
_PLAIN = (torch.float32, torch.float64, *_HALF)
_on_host = attrgetter("is_cpu")
_grad_enabled, _set_grad = torch.is_grad_enabled, torch._C._set_grad_enabled
_Unseen, _dispatched = torch._C.DisableTorchFunction, torch._C._len_torch_dispatch_stack
_side_by_side, _dot = torch._C._nn.flatten_dense_tensors, torch.dot
_CHUNK, _LONG = 1 << 24, 1 << 13
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Up to this many elements it is cheaper to lay all side by side than to look at each.
_FEW_ELEMENTS = 1 << 16
# On a device those that are small are laid side by side, if there are some of them, and they take less than 16 MiB.
_SMALL, _FEW, _SIDE_BY_SIDE = 1 << 14, 4, 1 << 22


def local(tensor: Tensor) -> Tensor | None:
    """Return the strided real floating-point data that this rank holds of ``tensor``, None when it holds none.

    DTensor by its local shard, sparse by its values, complex as real pairs; integers, meta and empty tensors are None.
    """
    shard = getattr(tensor, "_local_tensor", None)
    if shard is not None:
        tensor = shard
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point() or tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    if not is_there(tensor):
        return None  # FSDP frees what it gathered
    return tensor if tensor.dtype in _PLAIN else tensor.to(torch.float32)


class quiet:  # noqa: N801 - used as a verb in a with statement
    """Run our own torch calls unseen: no autograd graph, and no mode of the script's (FLOP counters, devices) told."""

    __slots__ = ("_functions", "_grad", "_modes")

    def __enter__(self) -> None:
        """Switch everything off that could see us; a class and not a generator, for it is on the hot path."""
        self._grad = _grad_enabled()
        self._modes = None
        if _dispatched():
            self._modes = _disable_current_modes()
            self._modes.__enter__()
        # Last, and in C++, for where an enter fails no exit follows.
        self._functions = functions = _Unseen()
        functions.__enter__()
        _set_grad(False)  # noqa: FBT003 - C++ takes no keywords

    def __exit__(self, *_: object) -> None:
        """Switch it on again."""
        _set_grad(self._grad)
        self._functions.__exit__(None, None, None)
        if self._modes is not None:
            self._modes.__exit__(None, None, None)


def norms(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return one 0-d tensor for each (device, dtype) among ``tensors``: the 2-norm of all their elements together."""
    many = tensors if isinstance(tensors, list) else list(tensors)
    if not many:
        return []
    if many[0].dtype in _PLAIN and alike(many):
        return [_norm(many, many[0].dtype)]
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for data in map(local, many):
        if data is not None:
            groups.setdefault((data.device, data.dtype), []).append(data)
    return [_norm(group, dtype) for (_, dtype), group in groups.items()]


def each_norm(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the 2-norm of each tensor as a 0-d one on its device, None for one that has no floats here."""
    if tensors and tensors[0].dtype in _PLAIN and alike(tensors):
        wide = torch.float32 if tensors[0].dtype in _HALF else None
        return list(torch._foreach_norm(list(tensors), 2, dtype=wide))
    data = [local(tensor) for tensor in tensors]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, one in enumerate(data):
        if one is not None:
            groups.setdefault((one.device, one.dtype), []).append(index)
    found: list[Tensor | None] = [None] * len(data)
    for (_, dtype), indices in groups.items():
        wide = torch.float32 if dtype in _HALF else None
        each = torch._foreach_norm([one for index in indices if (one := data[index]) is not None], 2, dtype=wide)
        for index, norm in zip(indices, each, strict=True):
            found[index] = norm
    return found


def _norm(group: list[Tensor], dtype: torch.dtype) -> Tensor:
    # In half precision a norm overflows at once, so it is accumulated in float32.
    wide = torch.float32 if dtype in _HALF else None
    if len(group) == 1 and wide is None:
        return norm_of(group[0])
    if len(group) > 1 and sum(map(Tensor.numel, group)) <= _FEW_ELEMENTS:
        norm: Tensor = torch.linalg.vector_norm(_side_by_side(group), dtype=wide)
        return norm
    if group[0].is_cpu and wide is None:
        return torch.scalar_tensor(norm_of_flat(list(map(flat, group))), dtype=dtype)
    each = _each_of_large(group, wide)
    return torch.linalg.vector_norm(torch.stack(each)) if len(each) > 1 else each[0]


def _each_of_large(group: list[Tensor], wide: torch.dtype | None) -> list[Tensor]:
    """Return the norm of each tensor that is large, and one of all that are small.

    Most tensors of a model are biases and the like: each by itself costs the host 10 us and more, on a device.
    """
    small = [one for one in group if one.numel() <= _SMALL]
    if len(small) < _FEW or sum(map(Tensor.numel, small)) > _SIDE_BY_SIDE:
        return list(torch._foreach_norm(group, 2, dtype=wide))
    large = [one for one in group if one.numel() > _SMALL]
    together = torch.linalg.vector_norm(_side_by_side(small), dtype=wide)
    return [together, *torch._foreach_norm(large, 2, dtype=wide)] if large else [together]


def norm_of(data: Tensor) -> Tensor:
    """Return the 2-norm of strided data in single or double precision, as a 0-d tensor where it lies."""
    if data.is_cpu and data.is_contiguous():
        line = flat(data)
        return _dot(line, line).sqrt_()
    norm: Tensor = torch.linalg.vector_norm(data)
    return norm


def flat(data: Tensor) -> Tensor:
    """Return a 1-d view of strided data, or its norm alone where there is none; both are of the same norm."""
    if data.is_contiguous():
        return data if data.dim() == 1 else data.view(-1)
    norm: Tensor = torch.linalg.vector_norm(data)
    return norm.view(1)


def norm_of_flat(data: Sequence[Tensor]) -> float:
    """Return the 2-norm of 1-d contiguous data on the CPU, in single or double precision.

    The product of a vector with itself takes half the time of torch's norm, and overflows where that does.
    """
    return math.sqrt(sum(map(Tensor.item, map(_dot, data, data))))


def read(scalars: Sequence[Tensor]) -> list[float]:
    """Bring 0-d tensors to the host, by one transfer a device."""
    if all(map(_on_host, scalars)):
        return list(map(Tensor.item, scalars))
    values = [scalar.item() if scalar.is_cpu else 0.0 for scalar in scalars]
    waiting: dict[torch.device, list[int]] = {}
    for index, scalar in enumerate(scalars):
        if not scalar.is_cpu:
            waiting.setdefault(scalar.device, []).append(index)
    for indices in waiting.values():
        column = column_of([scalars[index] for index in indices])
        for index, value in zip(indices, column.tolist(), strict=True):
            values[index] = value
    return values


def column_of(scalars: list[Tensor]) -> Tensor:
    """Return 0-d tensors of one device as a vector in float32, by one op where they are of that dtype already."""
    if set(map(_sort_of, scalars)) != _SINGLE:
        scalars = [one.detach().to(torch.float32).reshape(()) for one in scalars]
    return torch.stack(scalars)


_sort_of = attrgetter("dtype", "ndim")
_SINGLE = {(torch.float32, 0)}


def extent(data: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest element of strided real data that is not empty; NaN both where any is.

    As 0-d tensors where it lies. The 2-norm tells faster whether all is finite; the maximum norm takes a hundred times
    as long as this on the CPU.
    """
    if data.is_cpu and data.numel() > _LONG:
        return data.amin(), data.amax()  # the CPU is quicker with each of them than half of both at once
    low, high = torch.aminmax(data)
    return low, high


def largest(tensors: Iterable[Tensor]) -> float | None:
    """Return the largest magnitude of what is finite in what this rank holds; None where there are no floats.

    Reads the host, once a device.
    """
    ends: list[Tensor] = []
    for data in (held for one in tensors if (held := local(one)) is not None):
        ends += map(torch.abs, extent(torch.nan_to_num(data, nan=0.0, posinf=0.0, neginf=0.0)))
    return max(read(ends), default=None)


def is_bad(tensor: Tensor) -> bool:
    """Tell exactly whether any element that this rank holds is NaN or infinite; reads the host."""
    data = local(tensor)
    if data is None:
        return False
    low, high = extent(data)
    return not (math.isfinite(low.item()) and math.isfinite(high.item()))


def is_blank(tensor: Tensor) -> bool:
    """Tell whether all that this rank holds is 0; reads the host."""
    data = local(tensor)
    return data is not None and not bool(data.any())


def zeros_in(value: object) -> int:
    """Return how many of the floats that this rank holds of a tensor are 0; 0 for all else. Reads the host."""
    data = local(value) if isinstance(value, Tensor) and value.dim() else None
    return 0 if data is None else data.numel() - int(data.count_nonzero())


def fact(tensor: Tensor, name: str | None = None) -> TensorFact:
    """Return counts and extremes of what this rank holds of ``tensor``; reads the host, in chunks of 16M elements.

    Integers too: they are never bad, but a count of 0 may be what was divided by.
    """
    data = local(tensor)
    data = _integers(tensor) if data is None else data
    whole = TensorFact(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        numel=held_of(tensor).numel(),
        device=str(tensor.device),
        placement=_placement(tensor),
        name=name,
    )
    if data is None:
        return whole
    (nan, posinf, neginf, zeros), (low, high), least = _count(data)
    first = _first_bad(data) if nan or posinf or neginf else None
    return replace(
        whole, nan=nan, posinf=posinf, neginf=neginf, zeros=zeros, min=low, max=high,
        absmax=_absmax((low, high)), absmin=least, first_bad=first,
    )  # fmt: skip


def _integers(tensor: Tensor) -> Tensor | None:
    data = held_of(tensor).detach()
    if data.dtype not in _INTEGERS or data.layout is not torch.strided or data.device.type == "meta":
        return None
    return data if data.numel() and is_there(data) else None


def _count(data: Tensor) -> tuple[list[int], tuple[float | None, float | None], float | None]:
    counts, lows, highs, sizes = [0, 0, 0, 0], [], [], []
    for part in _chunks(data):
        good = torch.isfinite(part)
        for slot, mask in enumerate((part.isnan(), part == math.inf, part == -math.inf, part == 0)):
            counts[slot] += int(mask.sum())
        if bool(good.any()):
            lows.append(float(torch.where(good, part, math.inf).min()))
            highs.append(float(torch.where(good, part, -math.inf).max()))
            sizes.append(float(torch.where(good & (part != 0), part, math.inf).abs().min()))
    least = min(sizes, default=math.inf)
    return counts, (min(lows, default=None), max(highs, default=None)), least if math.isfinite(least) else None


def _absmax(extremes: tuple[float | None, float | None]) -> float | None:
    low, high = extremes
    return None if low is None or high is None else max(abs(low), abs(high))


def _chunks(data: Tensor) -> Iterator[Tensor]:
    if data.numel() <= _CHUNK:
        yield data
    elif data.dim() == 1:
        yield from data.split(_CHUNK)
    else:
        for row in data.split(max(1, _CHUNK * data.shape[0] // data.numel())):
            yield from _chunks(row.flatten()) if row.shape[0] == 1 and row.numel() > _CHUNK else (row,)


def _first_bad(data: Tensor) -> tuple[int, ...]:
    flat = int((~torch.isfinite(data)).flatten().to(torch.uint8).argmax())
    index = []
    for size in reversed(data.shape):
        flat, rest = divmod(flat, size)
        index.append(rest)
    return tuple(reversed(index))


def _placement(tensor: Tensor) -> str | None:
    placements = getattr(tensor, "placements", None)
    return None if placements is None else "(" + ", ".join(str(placement) for placement in placements) + ")"

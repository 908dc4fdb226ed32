"""Integer ops run again on wider numbers: what they gave had no end of their dtype been in the way (worker)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_OR_TRUTHS = _WHOLE | {torch.bool}
# By their names without underscores at both ends.
_ARITHMETIC = frozenset({
    "mul", "add", "sub", "rsub", "neg", "pow", "sum", "prod", "cumsum", "cumprod", "lshift", "bitwise_left_shift",
    "addcmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "abs",
})  # fmt: skip
_REDUCES = frozenset({"sum", "prod", "cumsum", "cumprod"})
_PRODUCTS = frozenset({"mm", "bmm", "mv", "dot"})
# What wraps on purpose, as a hash or a generator of random numbers does, leaves the range by far more.
_FARTHEST = 1 << 16
_LARGEST = 1 << 22
# Of a product of 64 bits a float64 is off by less, and what wraps is off by more.
_COARSE = 2.0**60


def widened(name: str, given: Sequence[Tensor], kwargs: dict[str, Any], *, mutable: bool) -> torch.dtype | None:
    """Return the dtype in which an op is run again to see whether it wraps; None where it is no integer op."""
    dtypes = {one.dtype for one in given}
    if name not in _ARITHMETIC or not dtypes or not dtypes <= _OR_TRUTHS or not dtypes & _WHOLE:
        return None
    if sum(one.numel() for one in given) > _LARGEST:
        return None
    asked = kwargs.get("dtype") or (given[0].dtype if mutable else None)
    if asked is None and name in _REDUCES:
        asked = torch.int64
    if asked is not None and asked not in _WHOLE:
        return None
    if asked is torch.int64 and torch.int64 not in dtypes:
        return None  # a sum of narrow numbers, which 64 bits hold
    return torch.float64 if asked is torch.int64 or (asked is None and torch.int64 in dtypes) else torch.int64


def wide(thing: Any, dtype: torch.dtype) -> Any:
    """Return an argument in the wider ``dtype``, where it is a tensor of integers or such a dtype itself."""
    if isinstance(thing, Tensor):
        return thing.to(dtype) if thing.dtype in _OR_TRUTHS else thing
    return dtype if isinstance(thing, torch.dtype) and thing in _WHOLE else thing


def left(exact: Tensor, out: Tensor) -> tuple[float, float] | None:
    """Return the least and the largest number that were to come ``out`` of an integer op, where these left its dtype.

    None where none did, or one by so much that it is meant to wrap.
    """
    if out.dtype not in _WHOLE or not exact.numel() or not differs(exact, out):
        return None
    low, high = (float(one) for one in torch.aminmax(exact))
    ends = torch.iinfo(out.dtype)
    far = max(low / ends.min if ends.min else -low / ends.max, high / ends.max)
    return (low, high) if far <= _FARTHEST else None


def differs(exact: Tensor, out: Tensor) -> bool:
    """Whether what was to come out is another number than what did, somewhere."""
    if out.dtype not in _WHOLE:
        return not torch.equal(exact.to(out.dtype), out)
    if out.dtype is torch.int64 and exact.is_floating_point():
        return bool(((exact.double() - out.double()).abs() > _COARSE).any())
    return bool((exact != out.to(exact.dtype)).any())


def whole(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype where it is one of integers."""
    return dtype if dtype in _WHOLE else None


def fits(exact: Tensor, dtype: torch.dtype) -> bool:
    """Whether a ``dtype`` of integers holds what was to be."""
    if not exact.numel():
        return True
    if exact.is_floating_point() and dtype is not torch.int64:
        return False
    low, high = (float(one) for one in torch.aminmax(exact))
    return torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max


def operands(name: str, args: Sequence[Any]) -> dict[str, object]:
    """Return which of the first two arguments are to be wider for the result to be, and whether the other is a number.

    One tensor is enough, but not one of a single number beside a larger one; of a product of matrices both are.
    """
    many = [one.dim() if isinstance(one, Tensor) else -1 for one in args[:2]]
    tensors = [place for place, dims in enumerate(many) if dims >= 0]
    numbers = any(type(one) in (int, float, bool) for one in args[:2])
    wide = tensors if name in _PRODUCTS or not tensors else [many.index(max(many))]
    return {"of": wide, "numbers": numbers}


Put = Callable[[Any], Any]


def each(thing: Any, put: Put) -> Any:
    """Return arguments with ``put`` of each one in its place, those in lists as well."""
    if type(thing) in (tuple, list):
        return type(thing)(each(one, put) for one in thing)
    if type(thing) is dict:
        return {key: each(one, put) for key, one in thing.items()}
    return put(thing)

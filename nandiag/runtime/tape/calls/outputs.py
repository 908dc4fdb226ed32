"""The tensors that a call gives out: a root module in an object of the script's too, a DTensor its shard (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from nandiag.runtime.tape.packed.nested import tensors_in

_SHARD = "_local_tensor"  # of a DTensor
_DEPTH = 3
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_MOST = 64


def given_out(output: Any) -> list[Tensor]:
    """Return the tensors in ``output``: those of containers first, then those that objects hold as attributes.

    The order is that of the attributes, which is the same when the module runs again.
    """
    if isinstance(output, Tensor):
        return [output]
    found = tensors_in(output)
    _attributes(output, found, _DEPTH)
    return found


def shards_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return what this rank holds of the DTensors among ``tensors``: they hand it out by no call of torch's."""
    return [getattr(one, _SHARD) for one in tensors if type(one) is not Tensor and hasattr(type(one), _SHARD)]


def _attributes(thing: Any, found: list[Tensor], depth: int) -> None:
    if depth == 0 or len(found) >= _MOST or isinstance(thing, (Tensor, str, int, float, *_OPAQUE)):
        return
    if isinstance(thing, tuple | list | dict):
        held = list(thing.values() if isinstance(thing, dict) else thing)
        for one in held[:_MOST]:
            _attributes(one, found, depth)
        return
    for one in list((getattr(thing, "__dict__", None) or {}).values())[:_MOST]:
        if isinstance(one, Tensor):
            found.append(one)
        else:
            _attributes(one, found, depth - 1)

"""Calls that run torch's own code alone: made again where nothing else is put back, they leave no trace (worker).

A function of the script's own may count, draw, print or write, and be reached in many ways; so what is not known to
reach none is taken to reach one.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from nandiag.runtime.belongings.reach import content
from nandiag.runtime.frames import TORCH, kind_of
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import PLAIN, Given, Made, Rebuilt

_OF_CLASSES = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
_LEAVES = PLAIN | {complex, bytes, range, EllipsisType, torch.Size, torch.memory_format, torch.Generator}
_OPS = frozenset({"aten", "prim", "prims"})


def runs_torch_alone(entries: list[Entry]) -> bool:
    """Whether these calls, made again, run nothing of the script's own, nor of a library's."""
    if not all(is_torchs_own(one.function) and one.modes[-1] is None for one in entries):
        return False  # those that pack for a backward are functions of the script's
    if not all(_is_plain_call(one) for one in entries):
        return False
    given = [word.get() for one in entries for word in one.words if type(word) is Given]
    hooked = any(one is not None and one._backward_hooks for one in given)
    return not (hooked and any(one.name == "grad" for one in entries))


def _is_plain_call(entry: Entry) -> bool:
    if not are_plain(entry.args, entry.kwargs):
        return False
    # A copy is one of the attributes too that the script has given to a tensor.
    copied = map(tensor_of, entry.words) if entry.name == "__deepcopy__" else ()
    return all(is_plain(vars(one)) for one in copied if one is not None)


def are_plain(args: Any, kwargs: Any) -> bool:
    """Whether torch takes none of these words for a function, nor asks it for what it is."""
    return all(map(is_plain, args or ())) and all(map(is_plain, (kwargs or {}).values()))


def is_plain(word: Any) -> bool:
    """Whether torch can take a word, as it is or packed, without asking code of the script's."""
    waiting = [word]
    while waiting:
        one = waiting.pop()
        if type(one) not in _LEAVES:
            held = _within(one, type(one))
            if held is None:
                return False
            waiting += held
    return True


def _within(word: Any, kind: type[Any]) -> Iterable[Any] | None:
    """Return what a word holds, None where it is not known to be plain."""
    if kind is tuple or kind is list:
        return word  # type: ignore[no-any-return]
    if kind is dict:
        return [*word, *word.values()]
    if kind is slice:
        return word.start, word.stop, word.step
    if kind is Rebuilt and word.kind.__bases__ == (tuple,) and hasattr(word.kind, "_fields"):
        return (word.items,)  # of a named tuple nothing but these is made anew
    tensor = tensor_of(word) if kind is Made or kind is Given else word
    if tensor is None or issubclass(type(tensor), Tensor):
        return () if tensor is None or _is_of_torch(type(tensor)) else None
    numpys = kind.__module__ == "numpy" and not getattr(getattr(word, "dtype", None), "hasobject", False)
    return () if numpys else None


def tensor_of(word: Made | Given) -> Tensor | None:
    """Return what a word stands for, None where it is gone."""
    return word.tensor() if type(word) is Made else word.get()  # type: ignore[union-attr]


def is_torchs_own(function: Any) -> bool:
    """Whether a function is torch's (or stands for what we have noted), and holds none of the script's."""
    waiting, seen = [function], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or type(one) in _LEAVES:  # a function may hold itself
            continue
        seen.add(id(one))
        held = _held_by(one)
        if held is None:
            return False
        waiting += held
    return True


def _held_by(function: Any) -> Iterable[Any] | None:
    """Return what a function of torch's holds and may call, None where it is none of torch's."""
    kind = type(function)
    if kind is FunctionType:
        torchs = kind_of(function.__code__.co_filename) == TORCH
        return list(map(content, function.__closure__ or ())) if torchs else None
    if kind is MethodWrapperType or kind is BuiltinFunctionType:
        owner = function.__self__
        if isinstance(owner, type | ModuleType):
            return () if _is_of_torch(owner) else None
        return (owner,)  # a property, or what stands for one in C
    if kind is property:
        return [one for one in (function.fget, function.fset) if one is not None]
    if kind in _OF_CLASSES:
        torchs = _is_of_torch(function.__objclass__)
    elif kind is OpOverload or kind is OpOverloadPacket:
        torchs = str(function).partition(".")[0] in _OPS
    else:
        torchs = str(kind.__module__).startswith("nandiag.")
    return () if torchs else None


def _is_of_torch(owner: type | ModuleType) -> bool:
    """Whether a class or a module is one of torch's."""
    name = owner.__name__ if isinstance(owner, ModuleType) else type.__getattribute__(owner, "__module__")
    return str(name).partition(".")[0] == "torch"

"""What a module reaches that no replay is known to put back: a lock, memory of others, a library's object (worker)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from enum import EnumMeta
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.runtime.belongings.reach import content, is_array, is_generator, is_mapped, is_of_script
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.tape.calls.holdings import INNER, LISTS, MAPS, is_plain_object
from nandiag.runtime.tape.entry import ROOT, Entry

_NUMBERS = (int, float, bool, complex, str, bytes, type(None), range, slice, type(Ellipsis), type(NotImplemented))
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.Size, torch.memory_format, torch.Generator)
_LEAVES = (*_NUMBERS, *_OF_TORCH)
_NAMESPACES = (Namespace, SimpleNamespace)
_MANY = (*LISTS, tuple, set, frozenset)
# Of what is larger than the first, or of more objects than that in all, it is not known.
_LARGEST, _MOST = 256, 4096


def is_not_all_kept(entries: Iterable[Entry]) -> bool:
    """Whether what modules hold may have moved on since their calls, so that a step which is finite now says little."""
    calls = [entry for entry in entries if entry.kind is ROOT]
    return any(one.lost or has_strangers(one.function) for one in calls)


def has_strangers(module: nn.Module) -> bool:
    """Whether a module of the script's below it, or what its own code names, leads to any such thing, or to too much.

    A module of torch's leaves alone what it holds, and so does one of a library's what is not its own.
    """
    waiting: list[Any] = [one for one in module.modules() if is_of_script(type(one))]
    seen: dict[int, Any] = {}
    while waiting:
        one = waiting.pop()
        if type(one) in _LEAVES or id(one) in seen:
            continue
        seen[id(one)] = one  # held, for another may be given its number meanwhile
        inside = _inside(one)
        if inside is None or len(seen) > _MOST:
            return True
        waiting += inside
    return False


def _inside(one: Any) -> Iterable[Any] | None:
    """Return what is to be looked at within ``one``, None where nobody could put it back."""
    kind = type(one)
    if kind in MAPS or kind in _MANY or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return _of_container(one, kind)
    if issubclass(kind, nn.Module):
        return _of_module(one) if is_of_script(kind) else ()
    if issubclass(kind, (Tensor, type, ModuleType)) or type(kind) is EnumMeta:
        return ()
    if is_plain_object(kind) or kind in _NAMESPACES:
        return list(object.__getattribute__(one, "__dict__").values())
    return None if is_of_script(kind) else _of_others(one, kind)


def _of_container(one: Any, kind: type[Any]) -> list[Any] | None:
    if len(one) > _LARGEST:
        return None
    return [*one, *one.values()] if kind in MAPS else list(one)


def _of_module(module: nn.Module) -> list[Any]:
    own = [value for name, value in vars(module).items() if name not in INNER]
    methods = [one for base in type(module).__mro__ if is_of_script(base) for one in vars(base).values()]
    return [*own, *(one for one in methods if type(one) in (FunctionType, list, dict))]


def _of_others(one: Any, kind: type[Any]) -> Iterable[Any] | None:
    if is_generator(one):
        return ()
    if is_array(one):
        return None if is_mapped(one) or getattr(getattr(one, "dtype", None), "hasobject", False) else ()
    return _of_callable(one, kind)


def _of_callable(one: Any, kind: type[Any]) -> Iterable[Any] | None:
    if kind is FunctionType:
        return _of_function(one) if kind_of(one.__code__.co_filename) == USER else ()
    if kind is MethodType:
        return one.__self__, one.__func__
    if kind is partial:
        return one.func, *one.args, *one.keywords.values()
    if kind is BuiltinFunctionType:
        return () if one.__self__ is None else (one.__self__,)
    return None


def _of_function(function: FunctionType) -> list[Any]:
    """Return what a function of the script's keeps, and what the globals that it names stand for."""
    named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    kept = [content(cell) for cell in function.__closure__ or ()]
    return [*named, *kept, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]

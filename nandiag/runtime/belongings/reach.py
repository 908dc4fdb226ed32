"""Finds what the script's own code can reach: globals of its modules, locals of its frames, its objects (worker).

Only containers, generators of random numbers, and objects of classes that the script itself defines are followed.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from nandiag.runtime.frames import USER, kind_of

MAPS = (dict, OrderedDict, Counter, defaultdict)
LISTS = (list, deque, set)
_MOST = 100_000
_LARGEST = 100_000
_DEPTH = 16


def reached(starts: Iterable[object]) -> Iterator[object]:
    """Yield, once each, what can be reached from ``starts``: nearest first, and no more than 100,000 objects."""
    seen: set[int] = set()
    waiting = deque((one, 0) for one in starts)
    while waiting and len(seen) < _MOST:
        one, depth = waiting.popleft()
        if id(one) in seen or not is_followed(one):
            continue
        seen.add(id(one))
        yield one
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for inner in _inside(one))


def starts_of(frame: FrameType | None) -> list[object]:
    """Return the globals of the script's modules, and what the locals of its frames hold, from ``frame`` outwards."""
    found: list[object] = [vars(module) for module in list(sys.modules.values()) if _is_users(module)]
    while frame is not None:
        if kind_of(frame.f_code.co_filename) == USER:
            found += list(frame.f_locals.values())
        frame = frame.f_back
    return found


def is_followed(one: object) -> bool:
    """Whether ``one`` is of a kind that a script changes by running, and that can be put back."""
    kind = type(one)
    if kind in MAPS or kind in LISTS or kind is tuple:
        return len(one) <= _LARGEST  # type: ignore[arg-type]
    if kind in (FunctionType, MethodType, itertools.count) or is_generator(one):
        return True
    if isinstance(one, type):
        return _defined_by_user(one)
    return isinstance(one, nn.Module) or kind.__module__.startswith("torch.utils.data") or is_object(one)


def is_generator(one: object) -> bool:
    """Whether ``one`` makes random numbers and can tell its state: of torch, numpy or Python."""
    if isinstance(one, torch.Generator | random.Random):
        return True
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and isinstance(one, numpy.RandomState | numpy.Generator)


def is_object(one: object) -> bool:
    """Whether ``one`` is an object, with attributes, of a class that the script defines."""
    kind = type(one)
    return kind is not ModuleType and hasattr(one, "__dict__") and not isinstance(one, type) and _defined_by_user(kind)


def _defined_by_user(kind: type) -> bool:
    return any(_is_users(sys.modules.get(one.__module__)) for one in kind.__mro__[:-1])


def _is_users(module: ModuleType | None) -> bool:
    return _has_users_file(module) and not _is_part_of_library(module)


def _has_users_file(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and kind_of(file) == USER


def _is_part_of_library(module: ModuleType | None) -> bool:
    # Libraries make modules of objects and give them what name of a file they like: torch.ops is of "_ops.py". To take
    # an operator out of it again that a replay was the first to use would leave torch with a pointer to nothing.
    whole = sys.modules.get(str(getattr(module, "__name__", "")).partition(".")[0])
    return whole is not None and isinstance(getattr(whole, "__file__", None), str) and not _has_users_file(whole)


def _inside(one: Any) -> Iterable[object]:
    if type(one) in MAPS:
        return list(one.values())
    if type(one) in LISTS or type(one) is tuple:
        return list(one)
    if type(one) is FunctionType:
        users = kind_of(one.__code__.co_filename) == USER
        return [content(cell) for cell in one.__closure__ or ()] if users else ()
    if type(one) is MethodType:
        return (one.__self__, one.__func__)
    if isinstance(one, type):
        return list(vars(one).values())
    return [vars(one), type(one)] if hasattr(one, "__dict__") else ()


def content(cell: Any) -> object:
    """Return what a closure's cell holds, None where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None

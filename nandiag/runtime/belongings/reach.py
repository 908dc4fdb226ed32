"""Finds what the script's own code can reach: globals of its modules, locals of its frames, its objects (worker).

Only containers, generators of random numbers, and objects of classes that the script itself defines are followed.
"""

from __future__ import annotations

import argparse
import array
import gc
import io
import mmap
import random
import sys
import threading
import weakref
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from types import FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from nandiag.runtime.belongings.instead.iterators import is_iterator
from nandiag.runtime.frames import USER, kind_of

MAPS = (dict, OrderedDict, Counter, defaultdict)
LISTS = (list, deque, set)
# What the standard library has for a script to keep things in.
_HOLDERS = (
    argparse.Namespace, SimpleNamespace, UserDict, UserList, ChainMap, threading.Semaphore, threading.Event,
    weakref.WeakKeyDictionary, weakref.WeakValueDictionary,
)  # fmt: skip
# What Python itself, other threads and processes, or nandiag go by.
_MACHINERY = frozenset({
    "abc", "ast", "asyncio", "atexit", "builtins", "codecs", "concurrent", "contextvars", "ctypes", "dataclasses",
    "enum", "functools", "gc", "importlib", "inspect", "io", "linecache", "logging", "multiprocessing", "operator",
    "os", "pkgutil", "queue", "runpy", "selectors", "signal", "site", "socket", "socketserver", "ssl", "subprocess",
    "sys", "threading", "traceback", "types", "typing", "unittest", "warnings", "weakref", "zipimport",
})  # fmt: skip
_MOST = 100_000
# Of a container larger than the first only its members are kept, not what they hold; of one larger than that, nothing.
_FOLLOWED = 100_000
_LARGEST = 2_000_000
_DEPTH = 16
_CACHED = type(lru_cache(id))
_PLAIN = (FunctionType, MethodType, partial, threading.local, _CACHED)
TENSORS = (torch.Tensor, nn.Parameter)
_FOLLOWED_OF_TORCH = ("torch.utils.data", "torch.optim", "torch.quasirandom")


def reached(starts: Iterable[object], *, alone: bool = False) -> Iterator[object]:
    """Yield, once each, what can be reached from ``starts``: nearest first, and no more than 100,000 objects.

    Objects of the standard library are followed where the script is ``alone``: what its other threads do to them by
    their methods cannot be told from what the step does.
    """
    seen: set[int] = set()
    passed: dict[int, type] = {}
    waiting = deque((one, 0) for one in starts)
    while waiting and len(seen) < _MOST:
        one, depth = waiting.popleft()
        # Most of what a script holds is numbers and words: that they are not followed is found out once for a class.
        if id(type(one)) in passed or id(one) in seen:
            continue
        if not (is_followed(one) or (alone and is_tool(one))):
            if _speaks_for_its_class(one):
                passed[id(type(one))] = type(one)
            continue
        seen.add(id(one))
        yield one
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for inner in _inside(one))


def starts_of(frame: FrameType | None) -> list[object]:
    """Return the globals of the script's modules, and what the locals of its frames hold, from ``frame`` outwards."""
    found: list[object] = [sys.path, *(vars(module) for module in list(sys.modules.values()) if _is_users(module))]
    while frame is not None:
        if kind_of(frame.f_code.co_filename) == USER:
            found += list(frame.f_locals.values())
        frame = frame.f_back
    return found


def is_followed(one: object) -> bool:
    """Whether ``one`` is of a kind that a script changes by running, and that can be put back."""
    kind = type(one)
    if kind in weakref.ProxyTypes:  # what it stands for is held elsewhere, or is gone: then it answers nothing
        return False
    if kind in MAPS or kind in LISTS or isinstance(one, tuple):
        return len(one) <= (_FOLLOWED if isinstance(one, tuple) else _LARGEST)  # type: ignore[arg-type]
    if kind in _PLAIN or is_iterator(kind) or kind in TENSORS or is_generator(one) or is_array(one):
        return True
    if isinstance(one, type):
        return is_of_script(one)
    return isinstance(one, nn.Module) or kind.__module__.startswith(_FOLLOWED_OF_TORCH) or is_object(one)


def is_of_script(one: object) -> bool:
    """Whether a module or a class is the script's own: what it holds is kept as a whole."""
    return _defined_by_user(one) if isinstance(one, type) else isinstance(one, ModuleType) and _is_users(one)


def _speaks_for_its_class(one: object) -> bool:
    """Whether nothing of its class is followed where ``one`` is not: it has no size, and is no class itself."""
    kind = type(one)
    if kind in weakref.ProxyTypes:
        return True
    # What says that it is of another class than it is (a lazy object) may say so of several.
    return not (kind in MAPS or kind in LISTS or isinstance(one, tuple | type)) and one.__class__ is kind


def is_tool(one: object) -> bool:
    """Whether ``one`` is an object of the standard library, with attributes, that a script uses for its own ends."""
    package = type(one).__module__.partition(".")[0]
    known = package in sys.stdlib_module_names and package not in _MACHINERY and hasattr(one, "__dict__")
    return known and not isinstance(one, (type, ModuleType, io.IOBase))


def is_generator(one: object) -> bool:
    """Whether ``one`` makes random numbers, or seeds, and can tell its state: of torch, numpy or Python."""
    if isinstance(one, torch.Generator | random.Random):
        return True
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return False
    return isinstance(one, numpy.RandomState | numpy.Generator | numpy.BitGenerator | numpy.SeedSequence)


def is_array(one: object) -> bool:
    """Whether ``one`` holds numbers in memory of its own that no op of torch's writes: of numpy or of Python."""
    numpy = sys.modules.get("numpy")
    arrays = (bytearray, array.array, mmap.mmap)
    return isinstance(one, arrays if numpy is None else (*arrays, numpy.ndarray))


def is_mapped(one: object) -> bool:
    """Whether ``one`` is a file, or memory of other processes too, mapped into that of this one."""
    return isinstance(one, mmap.mmap)


def is_object(one: object) -> bool:
    """Whether ``one`` is an object, with attributes or slots, of the script's class, or such a library's."""
    kind = type(one)
    if kind is ModuleType or isinstance(one, type) or not (_defined_by_user(kind) or _keeps_its_place(kind)):
        return False
    return hasattr(one, "__dict__") or bool(slots_of(kind))


def _keeps_its_place(kind: type) -> bool:
    """Whether what a library's ``kind`` makes keeps in attributes what a script moves on: holders, and iterators."""
    return issubclass(kind, _HOLDERS) or type(getattr(kind, "__next__", None)) is FunctionType


def slots_of(kind: type) -> list[MemberDescriptorType]:
    """Return what reads and sets the slots of the objects of ``kind``."""
    own = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    return [one for names in own for one in names.values() if type(one) is MemberDescriptorType]


def form_of(one: object) -> type | None:
    """Return which container ``one`` is, itself or by a class of the script's, None where it is none."""
    kind = type(one)
    if kind in MAPS or kind in LISTS:
        return kind
    return next((base for base in kind.__mro__ if base in (*MAPS, *LISTS)), None) if is_object(one) else None


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
    if type(one) is FunctionType:
        return _inside_function(one)
    # By identity: a class of the script's may have no hash.
    wrapped = next((within for kind, within in _WRAPPERS.items() if kind is type(one)), None)
    if wrapped is not None:
        return wrapped(one)
    if isinstance(one, type):
        return list(vars(one).values())
    if is_iterator(type(one)):
        return gc.get_referents(one)
    return [*_members(one), *_attributes(one)]


_WRAPPERS: dict[type, Callable[[Any], Iterable[object]]] = {
    MethodType: lambda one: (one.__self__, one.__func__),
    partial: lambda one: (one.func, *one.args, *one.keywords.values(), vars(one)),
    _CACHED: lambda one: (one.__wrapped__, vars(one)),
}


def _inside_function(one: FunctionType) -> list[object]:
    held = [*(content(cell) for cell in one.__closure__ or ()), vars(one).get("__wrapped__")]
    if kind_of(one.__code__.co_filename) == USER:
        return [*held, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values(), vars(one)]
    # A library's decorator: of what it holds only the script's own function, and what is noted on it, are the script's.
    own = [inner for inner in held if type(inner) is FunctionType and kind_of(inner.__code__.co_filename) == USER]
    return [*own, vars(one)] if own else []


def _members(one: Any) -> list[object]:
    if is_array(one) and getattr(getattr(one, "dtype", None), "hasobject", False):
        return list(one.flat) if one.size <= _FOLLOWED and one.dtype == object else []
    form: Any = tuple if isinstance(one, tuple) else form_of(one)
    if form is not None and form.__len__(one) > _FOLLOWED:
        return []
    if form in MAPS:
        return list(dict.values(one))
    return [] if form is None else list(form.__iter__(one))


def _attributes(one: Any) -> list[object]:
    if isinstance(one, torch.Tensor) or is_array(one):
        return []
    if is_generator(one):  # of numpy's, what it was seeded by has counted its children
        return [getattr(getattr(one, "bit_generator", one), "seed_seq", None)]
    if isinstance(one, torch.optim.Optimizer) and not is_object(one):
        return list(one.param_groups)  # torch's own move their state by updates alone, and it may be very much
    slots = [slot.__get__(one) for slot in slots_of(type(one)) if is_filled(slot, one)] if is_object(one) else []
    return [*slots, vars(one), type(one)] if hasattr(one, "__dict__") else slots


def is_filled(slot: MemberDescriptorType, one: object) -> bool:
    """Whether this slot of ``one`` holds anything."""
    try:
        slot.__get__(one)
    except AttributeError:
        return False
    return True


def content(cell: Any) -> object:
    """Return what a closure's cell holds, None where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None

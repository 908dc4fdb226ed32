"""The leaves that a backward call puts gradients into, found by walking the graph from its roots (worker).

Only for scripts without an optimizer, which nobody tells what they train.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.frames.text import tree_of

# Of these a property is read in C++ alone; a class of the script's own may see it read, and count it.
BUILT_IN = (Tensor, nn.Parameter)
T = TypeVar("T")
_MOST_NODES = 100_000
_MOST_FRAMES = 40


def leaves_of(roots: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves that gradients of ``roots`` gather in, each once; reads no values."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    # The nodes themselves: Python's side of a node dies with its last reference, and the next one gets its id.
    seen = set(waiting)
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return list(found.values())


def names_in_script(tensors: Iterable[Tensor]) -> dict[int, str]:
    """Return by ``id`` what the script calls each of the tensors, as far as a running function's variables tell.

    That is a variable, or a way from one through lists, dicts and attributes (``layers[0].weight``, ``params['w']``). A
    name of its own comes before a place in a list, and what a loop only passes by comes last.
    """
    wanted = set(map(id, tensors))
    found: dict[int, tuple[tuple[bool, bool, int], str]] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if kind_of(frame.f_code.co_filename) == USER:
            passing = _passing(frame.f_code.co_filename)
            for told, one in _held(frame):
                if id(one) in wanted:
                    rank = (told in passing, told.endswith("]") and told[-2].isdigit(), len(_PARTS.findall(told)))
                    found[id(one)] = min(found.get(id(one), (rank, told)), (rank, told), key=lambda pair: pair[0])
        frame = frame.f_back
    return {key: told for key, (_, told) in found.items()}


_PARTS = re.compile(r"[.\[]")
_DEEPEST, _MOST_ITEMS, _MOST_LOOKED = 3, 512, 20_000


@lru_cache(maxsize=8)
def _passing(file: str) -> frozenset[str]:
    """Return the names that loops of a file bind, of which each stands for many things in turn."""
    tree = tree_of(file)
    loops = (ast.For, ast.AsyncFor, ast.comprehension)
    targets = [node.target for node in ast.walk(tree) if isinstance(node, loops)] if tree is not None else []
    return frozenset(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _held(frame: FrameType) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a frame's variables lead to, each by its way; a module's parameters have names already."""
    left = [_MOST_LOOKED]
    seen: set[int] = set()
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        if not name.startswith("__"):
            yield from _named(name, value, 0, seen, left)


def _named(name: str, value: Any, depth: int, seen: set[int], left: list[int]) -> Iterator[tuple[str, Tensor]]:
    left[0] -= 1
    if issubclass(type(value), Tensor):  # isinstance would ask the value for its __class__, which may be the script's
        yield name, value
        return
    ways = _ways(name, value) if depth < _DEEPEST and left[0] > 0 and id(value) not in seen else None
    if ways is not None:
        seen.add(id(value))
        for told, one in ways:
            yield from _named(told, one, depth + 1, seen, left)


def _ways(name: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return what a list, a dict, or an object of the script's own holds; reads no property, and runs nothing."""
    kind = type(value)
    if issubclass(kind, list | tuple):
        own_items = list.__iter__(value) if issubclass(kind, list) else tuple.__iter__(value)
        return [(f"{name}[{index}]", one) for index, one in enumerate(islice(own_items, _MOST_ITEMS))]
    if issubclass(kind, dict):
        some = islice(dict.items(value), _MOST_ITEMS)
        return [(f"{name}[{key!r}]", one) for key, one in some if type(key) in {str, int}]
    own = getattr(sys.modules.get(kind.__module__), "__file__", None)
    ours = kind is SimpleNamespace or (isinstance(own, str) and kind_of(own) == USER)
    if not ours or issubclass(kind, nn.Module | type):
        return None
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return [(f"{name}.{key}", one) for key, one in list(held.items())[:_MOST_ITEMS]]


def is_leaf(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a leaf of autograd's graph.

    To ask it of a view of a weight that was made, and written into, without gradients raises: it is none.
    """
    try:
        return tensor.is_leaf if type(tensor) in BUILT_IN else unseen(getattr, tensor, "is_leaf")
    except RuntimeError:
        return False


def unseen(function: Callable[..., T], *words: Any) -> T:
    """Call ``function`` unseen by ``__torch_function__`` of the script's own classes of tensors."""
    with DisableTorchFunctionSubclass():
        return function(*words)

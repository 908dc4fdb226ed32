"""The leaves that a backward call puts gradients into, found by walking the graph from its roots (worker).

Only for scripts without an optimizer, which nobody tells what they train.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass

from nandiag.runtime.frames import USER, kind_of

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
    """Return by ``id`` what the script calls each of the tensors, as far as a variable of a running function tells."""
    wanted = set(map(id, tensors))
    found: dict[int, str] = {}
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if kind_of(frame.f_code.co_filename) == USER:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                for told, one in _named(name, value):
                    if id(one) in wanted:
                        found.setdefault(id(one), told)
        frame = frame.f_back
    return found


def _named(name: str, value: Any) -> Iterable[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif type(value) in (list, tuple):
        yield from ((f"{name}[{index}]", one) for index, one in enumerate(value[:512]) if isinstance(one, Tensor))
    elif type(value) is dict:
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items())[:512] if isinstance(one, Tensor))


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

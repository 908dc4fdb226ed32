"""Tensors that a forward leaves where the script finds them: an auxiliary loss in an attribute, features in a list.

They are outputs of the call as much as what it returns. Where that is, is learnt at a first call: attributes of the
modules, and what their forward hooks write into (worker).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeAlias

from torch import Tensor, nn

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.tape.packed.words import Given, Made

_MOST = 256
_INNER = frozenset(vars(nn.Module()))
# A namespace, and a name in it.
Place: TypeAlias = tuple[dict[str, Any], str]
# The same, with how many tensors a call left there, behind those that were there before.
Side: TypeAlias = tuple[dict[str, Any], str, int]


class Sides:
    """What a root module leaves anew when a call of it returns, besides what it returns.

    Learnt for each ``manner`` of calling it: in training or not, with gradients or without.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._known: dict[Hashable, list[Place]] = {}
        self._manner: Hashable = None
        self._before: dict[int, weakref.ref[Tensor]] = {}

    @property
    def expected(self) -> bool:
        """Whether the call under way is a first one, or of a manner that is known to leave something."""
        return self._known.get(self._manner) != []

    def begin(self, manner: Hashable) -> None:
        """A call begins."""
        self._manner = manner
        # Weakly: the graph of the call before would live on.
        if self.expected:
            self._before = {id(one): weakref.ref(one) for place in self._places() for one in _tensors_at(*place)}

    def end(self, words: Iterable[Made | Given]) -> tuple[list[Side], list[Tensor]]:
        """It returned: the places that hold tensors that were not there before, and these one after another.

        Not those with a weight among them, or with what the call was given, by its ``words``.
        """
        given = {id(word.tensor() if type(word) is Made else word.get()) for word in words}  # type: ignore[union-attr]
        anew = [(place, found) for place in self._places() if (found := self._anew(place, given))]
        self._known.setdefault(self._manner, [place for place, _ in anew])
        self._before = {}
        return [(*place, len(found)) for place, found in anew], [one for _, found in anew for one in found]

    def let_go(self) -> None:
        """The module is gone: its attributes would live on here."""
        self._known.clear()
        self._before = {}

    def _places(self) -> Sequence[Place]:
        known = self._known.get(self._manner)
        return list(_places(self._module())) if known is None else known

    def _anew(self, place: Place, given: set[int]) -> list[Tensor]:
        found = _tensors_at(*place)
        old = sum(map(self._was_there, found))
        anew = found[old:]
        if any(map(self._was_there, anew)) or any(id(one) in given or _is_weight(one) for one in anew):
            return []  # it cannot be told from what was there
        return anew

    def _was_there(self, tensor: Tensor) -> bool:
        known = self._before.get(id(tensor))
        return known is not None and known() is tensor


def left_at(sides: Iterable[Side]) -> list[Tensor]:
    """Return what was left anew at ``sides`` by a call made again, as far as it left as many tensors as before."""
    found: list[Tensor] = []
    for names, name, count in sides:
        held = _tensors_at(names, name)
        if len(held) < count:
            break
        found += held[-count:]
    return found


def _is_weight(tensor: Tensor) -> bool:
    return tensor.requires_grad and is_leaf(tensor)


def _places(module: nn.Module | None) -> Iterator[Place]:
    for one in () if module is None else module.modules():
        yield from _attributes(one)
        for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values()):
            yield from _written_by(hook)


def _attributes(owner: Any) -> Iterator[Place]:
    names = getattr(owner, "__dict__", {})
    yield from ((names, name) for name in list(names) if name not in _INNER)


def _written_by(hook: Any) -> Iterator[Place]:
    """Where a function may keep what it is called with: in its object, its closure, its arguments, or globals."""
    if isinstance(hook, functools.partial):
        yield from _held({str(at): value for at, value in enumerate((*hook.args, *hook.keywords.values()))})
        yield from _written_by(hook.func)
    elif isinstance(hook, MethodType):
        yield from _attributes(hook.__self__)
    elif isinstance(hook, FunctionType):
        cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False)
        yield from _held({name: cell.cell_contents for name, cell in cells if _is_filled(cell)})
        names = hook.__globals__
        yield from ((names, name) for name in hook.__code__.co_names if type(names.get(name)) in {dict, list})


def _held(names: dict[str, Any]) -> Iterator[Place]:
    for name, value in names.items():
        if type(value) in {dict, list}:
            yield names, name
        elif not isinstance(value, type | Tensor | FunctionType | MethodType):
            yield from _attributes(value)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _tensors_at(names: dict[str, Any], name: str) -> list[Tensor]:
    """Return the tensors that a name stands for, or that it holds as a plain list, tuple or dict, in order."""
    value: Any = names.get(name)
    if isinstance(value, Tensor):
        return [value]
    items: Iterable[Any] = value.values() if type(value) is dict else value if type(value) in {list, tuple} else ()
    return [one for _, one in zip(range(_MOST), items, strict=False) if isinstance(one, Tensor)]

"""What modules hold beside parameters: tensors in attributes and buffers, in lists and dicts, in objects (worker).

Only what is small in number is looked through, and nothing of the script's own is called: no hook of its classes.
"""

from __future__ import annotations

import functools
import weakref
from abc import ABC
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias

from torch import Tensor, nn, strided

from nandiag.runtime.belongings.reach import is_of_script
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.tape.packed.words import version_of

_MOST, _MOST_NAMES = 256, 64
_DEPTH = 2
_LARGEST = 1 << 20
INNER = frozenset(vars(nn.Module()))
MAPS, LISTS = (dict, OrderedDict, defaultdict), (list, deque)
_BARE = frozenset({object, ABC, Generic, Protocol})
_HOLDERS = (*MAPS, *LISTS, tuple)  # no set: a class of the script's may have no hash
# The keys that lead from what a name stands for to what lies within; positions in lists count from the end.
Way: TypeAlias = tuple[Hashable, ...]


class Place(NamedTuple):
    """A name in a namespace: the attributes or the buffers of an ``owner``, or a dict that is one itself.

    ``bound``: the name may stand for another thing for a while. No owner is kept alive.
    """

    owner: Callable[[], Any]
    inner: str
    name: str
    bound: bool

    @property
    def names(self) -> dict[str, Any]:
        """The namespace, empty where its owner is gone."""
        owner = self.owner()
        if owner is None:
            return {}
        return owner if self.inner == "" else object.__getattribute__(owner, self.inner)  # type: ignore[no-any-return]

    @property
    def key(self) -> tuple[int, str]:
        """What tells it from other places, as long as its owner, or what a closure or a class holds there, lives."""
        return id(self.names if self.bound or self.inner else self.value), self.name

    @property
    def value(self) -> Any:
        """What the name stands for, None where it stands for nothing."""
        return self.names.get(self.name)


def places(module: nn.Module | None) -> Iterator[Place]:
    """Yield where the modules below ``module``, and their forward hooks, may keep something; buffers last."""
    modules = [] if module is None else list(module.modules())
    for one in modules:
        yield from _attributes(one)
        for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values()):
            yield from _written_by(hook)
    for kind in {type(one): None for one in modules if not type(one).__module__.startswith("torch.")}:
        yield from _shared_by(kind)
    for one in modules:
        if type(one._buffers) is dict:  # a scripted module's lie in C++
            yield from (Place(weakref.ref(one), "_buffers", name, bound=False) for name in one._buffers)


def tensors_at(place: Place) -> list[tuple[Way, Tensor]]:
    """Return the tensors that a name stands for, or that what it stands for holds, with the way to each."""
    value: Any = place.value
    return [((), value)] if is_tensor(value) else list(_within(value, _DEPTH))


def with_place(known: list[Place], place: Place) -> list[Place]:
    """Return the places that are ``known``, and ``place``, without those whose owners are gone."""
    there = [one for one in known if one.owner() is not None]
    return there if any(one.key == place.key for one in there) else [*there, place]


def is_tensor(value: Any) -> bool:
    """Whether it is one, by its class alone: what only says so (a proxy, a lazy object) would have to be asked."""
    return issubclass(type(value), Tensor)


def at(place: Place, way: Way) -> Any:
    """Return what lies there; raises LookupError or TypeError where nothing does any more."""
    value = place.names[place.name]
    for key in way:
        if type(value) not in _HOLDERS or (type(value) in MAPS and key not in value):
            raise KeyError(key)  # a defaultdict would make one
        value = value[key]
    return value


def plain_at(place: Place) -> list[Tensor]:
    """Return those of them that a call may write into as it may into buffers: numbers of their own, with no graph."""
    return [one for _, one in tensors_at(place) if type(one) is Tensor and _is_plain(one)]


class Mark(NamedTuple):
    """What lay at a ``place``, by its ``id``: what the name stands for, and the tensors there with their versions."""

    place: Place
    value: int
    versions: dict[int, int]

    def is_same(self, now: Mark) -> bool:
        """Whether the same things lie there ``now``."""
        return self.value == now.value and self.versions.keys() == now.versions.keys()

    def written(self, now: Mark) -> list[Tensor]:
        """Return the plain tensors that lay there and do so ``now``, written into since."""
        return [
            one
            for one in plain_at(now.place)
            if self.versions.get(id(one), now.versions.get(id(one))) != now.versions.get(id(one))
        ]


def marks(module: nn.Module) -> dict[tuple[int, str], Mark]:
    """Return those of the places that hold tensors, by the place's key."""
    found = {}
    for place in places(module):
        versions = {id(one): version_of(one) for _, one in tensors_at(place)}
        if versions:
            found[place.key] = Mark(place, id(place.value), versions)
    return found


def items_of(value: Any) -> list[tuple[Hashable, Any]]:
    """Return what a list, tuple or dict holds that is not large, with the key of each; nothing of anything else."""
    kind = type(value)
    if kind not in _HOLDERS or len(value) > _MOST:
        return []
    return list(value.items()) if kind in MAPS else list(zip(range(-len(value), 0), value, strict=False))


def _is_plain(one: Tensor) -> bool:
    own = is_leaf(one) and not one.requires_grad and not one.is_inference() and one.layout is strided
    return own and one.is_floating_point() and one.numel() <= _LARGEST and is_there(one)


def _within(value: Any, depth: int) -> Iterator[tuple[Way, Tensor]]:
    for key, one in items_of(value):
        if is_tensor(one):
            yield (key,), one
        elif depth > 1:
            yield from (((key, *way), tensor) for way, tensor in _within(one, depth - 1))


def _attributes(owner: Any) -> Iterator[Place]:
    """Yield those of a module, and of the objects of the script's own that it holds, or of such an object."""
    is_module = issubclass(type(owner), nn.Module)
    if not (is_module or is_plain_object(type(owner))):
        return
    names = object.__getattribute__(owner, "__dict__")
    own = [name for name in names if not is_module or name not in INNER]
    holder = weakref.ref(owner)
    for name in own if len(own) <= _MOST_NAMES else ():
        yield Place(holder, "__dict__", name, bound=True)
        if is_module and is_plain_object(type(names.get(name))):
            yield from _attributes(names[name])


def is_plain_object(kind: type[Any]) -> bool:
    """Whether what is of this class of the script's has attributes that are read and set as they are.

    All that makes it is the script's: what a base of a library's, or of Python's, keeps beside them is not seen.
    """
    if type(kind).__hash__ is None:  # its metaclass says what it equals, and no more
        return False
    known = _plain_objects.get(kind)
    if known is None:
        plain = _home(kind, "__getattribute__") is object and _home(kind, "__setattr__") is object
        whole = kind.__dictoffset__ != 0 and kind.__weakrefoffset__ != 0 and not hasattr(kind, "__del__")
        own = all(is_of_script(base) or any(base is one for one in _BARE) for base in kind.__mro__)
        known = _plain_objects[kind] = plain and whole and own
    return known


_plain_objects: weakref.WeakKeyDictionary[type[Any], bool] = weakref.WeakKeyDictionary()


def _home(kind: type[Any], name: str) -> type[Any]:
    """Return the class that a name of ``kind`` is defined in."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _shared_by(kind: type) -> Iterator[Place]:
    """Where all modules of a kind may keep something: in their class, and in globals that its forward names.

    Or that a function names which it calls.
    """
    yield from _held({name: value for name, value in vars(kind).items() if type(value) in (dict, list)})
    forward = kind.forward  # type: ignore[attr-defined]
    if not isinstance(forward, FunctionType):
        return
    yield from _written_by(forward)
    for name in forward.__code__.co_names:
        called = forward.__globals__.get(name)
        if isinstance(called, FunctionType) and called.__globals__ is forward.__globals__:
            yield from _written_by(called)


def _written_by(hook: Any) -> Iterator[Place]:
    """Where a function may keep what it is called with: in its object, its closure, its arguments, or globals."""
    if isinstance(hook, functools.partial):
        yield from _held({str(index): value for index, value in enumerate((*hook.args, *hook.keywords.values()))})
        yield from _written_by(hook.func)
    elif isinstance(hook, MethodType):
        yield from _attributes(hook.__self__)
    elif isinstance(hook, FunctionType):
        cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=False)
        yield from _held({name: cell.cell_contents for name, cell in cells if _is_filled(cell)})
        names = hook.__globals__
        for name in hook.__code__.co_names:
            if type(names.get(name)) in (dict, list):
                yield Place(_always(names), "", name, bound=True)


def _held(names: dict[str, Any]) -> Iterator[Place]:
    """Yield what cannot be bound anew: what a closure or a class holds."""
    for name, value in names.items():
        if type(value) in (dict, list):
            yield Place(_always({name: value}), "", name, bound=False)
        elif not issubclass(type(value), (type, Tensor, FunctionType, MethodType)):
            yield from _attributes(value)


def _always(names: dict[str, Any]) -> Callable[[], Any]:
    return lambda: names


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def flat(value: Any, depth: int = _DEPTH) -> Iterable[Any]:
    """Yield a value and what it holds."""
    yield value
    for key, one in items_of(value) if depth else ():
        yield key
        yield from flat(one, depth - 1)

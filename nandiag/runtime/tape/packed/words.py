"""What stands for a tensor, or a container of tensors, among the arguments of a taped call (worker).

A value that an earlier call made is to be made again; all else is referred to, weakly until a gradient depends on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, device, dtype, layout, strided

from nandiag.runtime.leaves import BUILT_IN, is_leaf, unseen

if TYPE_CHECKING:
    from nandiag.runtime.tape.entry import Entry

# What an argument may be that is kept as it is.
PLAIN = frozenset({int, float, bool, str, type(None), dtype, device, layout})
# What may return the tensor that it was given, as ``x.to(device)`` does where x is there already, and writes nothing.
HANDS_ON = frozenset({
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "bool", "cpu", "cuda", "contiguous",
    "flatten", "ravel", "reshape", "positive", "real", "resolve_conj", "resolve_neg", "dropout", "alpha_dropout",
})  # fmt: skip
# Older releases of torch (2.6) free a tensor that came of a weak reference with the gradient that it was, though it is
# held, and warn, unless it is told.
_own: Callable[[Tensor], object] = getattr(Tensor, "_fix_weakref", lambda _: None)
_GRADIENT: Any = Tensor.grad
# What ``p.grad`` calls: it is equal for all, and asked for without a call.
READ_GRADIENT = _GRADIENT.__get__


class Made:
    """A tensor that the ``index``-th output of ``entry`` was, by a weak reference to it.

    ``version`` is its version counter when it was used, where nothing needed it yet and it may come to be held. Where
    it is None, one such word stands for every use of the tensor.
    """

    __slots__ = ("entry", "index", "tensor", "version")

    def __init__(self, entry: Entry, index: int, tensor: weakref.ref[Tensor], version: int | None = None) -> None:
        self.entry = entry
        self.index = index
        self.tensor: Callable[[], Tensor | None] = tensor
        self.version = version

    def used(self, version: int, after: int) -> None:
        """Take the version that the tensor had when it was used, for one that may come to be held."""
        del after
        if self.version is not None:
            self.version = version

    @property
    def taken(self) -> bool:
        """Whether the tensor is taken as it is, and the call that made it is not made again for it.

        What was read off another one (a gradient that is kept from step to step) is read again if it was written since,
        and a gradient behind a backward of the step in any case: that makes it again.
        """
        entry = self.entry
        if isinstance(self.tensor, weakref.ref) or (entry.micro_step > 0 and entry.function == READ_GRADIENT):
            return False
        tensor = self.tensor() if entry.name == "__get__" else None
        return tensor is None or self.version in {None, version_of(tensor)}

    def hold(self) -> bool:
        """Make the reference strong, for the call that made it cannot be made again; False where that is too late."""
        tensor = self.tensor()
        if tensor is None or tensor.requires_grad or self.version != version_of(tensor):
            return False
        _own(tensor)
        self.tensor = partial(_same, tensor)
        return True


class Given:
    """A tensor from outside the tape, with its version counter when it was used; weak where ``strong`` is False.

    ``of_graph``: of a weak one, which may be gone by the time that it is asked, whether it was one of a graph.
    """

    __slots__ = ("_tensor", "of_graph", "version", "written")

    def __init__(self, tensor: Tensor, strong: bool) -> None:  # noqa: FBT001 - made for most words of taped calls
        self._tensor: Any = tensor if strong else weakref.ref(tensor)
        self.version = version_of(tensor)
        self.written = False
        self.of_graph = not strong and tensor.requires_grad and not is_leaf(tensor)

    def used(self, version: int, after: int) -> None:
        """Take the versions that the tensor had when it was used, and when the call was over."""
        self.version, self.written = version, after != version

    def call_ended(self) -> None:
        """The call that it was given to is over: did that write into it?"""
        tensor = self.get()
        self.written = tensor is not None and version_of(tensor) != self.version

    @property
    def bytes(self) -> int:
        """The memory that it keeps, in bytes; weights are there in any case."""
        tensor = self._tensor
        if not isinstance(tensor, Tensor) or tensor.requires_grad:
            return 0
        return tensor.nbytes if tensor.layout is strided else tensor.numel()

    def release(self) -> None:
        """Make the reference weak."""
        tensor = self.get()
        self._tensor = _gone if tensor is None else weakref.ref(tensor)

    def let_go(self) -> None:
        """Refer to nothing any more."""
        self._tensor = _gone

    def hold(self) -> bool:
        """Make the reference strong; False when the tensor is gone."""
        tensor = self.get()
        if tensor is not None:
            self._tensor = tensor
        return tensor is not None

    def get(self) -> Tensor | None:
        """Return the tensor, None when it is gone."""
        if isinstance(self._tensor, Tensor):
            return self._tensor
        tensor: Tensor | None = self._tensor()
        if tensor is not None:
            _own(tensor)
        return tensor


def is_handed_on(output: Any, args: Iterable[Any]) -> bool:
    """Whether a call of one that :data:`HANDS_ON` returned the very tensor that it was given.

    It has made nothing: what is written into that tensor afterwards is written into what came from before the call.
    """
    return output is not None and any(word is output for word in args)


def _same(tensor: Tensor) -> Tensor:
    """Stand in for a weak reference to a tensor that is held."""
    return tensor


def _gone() -> None:
    """Stand in for a weak reference whose tensor is gone."""


class Rebuilt(NamedTuple):
    """A container of a class of its own (a named tuple, a model's output), to be made again of its packed items."""

    kind: type
    items: Any

    def make(self, items: Any) -> Any:
        """Return a container of the class with ``items``."""
        if isinstance(items, dict):
            return self.kind(**items) if hasattr(self.kind, "__dataclass_fields__") else self.kind(items)
        return self.kind._make(items)  # type: ignore[attr-defined]


def base_of(tensor: Tensor) -> Tensor:
    """Return what ``tensor`` is a view of, itself where it is of none."""
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base


def is_of(parted: set[int], tensor: Tensor) -> bool:
    """Whether ``tensor``, or what it is a view of, is among those ``parted``, by ``id``."""
    return not parted.isdisjoint((id(tensor), id(base_of(tensor))))


def version_of(tensor: Tensor) -> int:
    """Return the tensor's version counter, 0 for inference tensors, which have none."""
    try:
        return tensor._version if type(tensor) in BUILT_IN else unseen(getattr, tensor, "_version")
    except RuntimeError:
        return 0

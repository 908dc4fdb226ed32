"""The tensors that ``backward()`` was called on since the last optimizer step, and their loss scale (worker)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from nandiag.runtime.look.finite import local, quiet
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.memory.weakly import Weakly

_MANY = 4096
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Factor: TypeAlias = tuple[Tensor, int]


class Loss(NamedTuple):
    """One root of a backward call: a 0-d tensor whose finiteness is that of the root, and whether it is its value.

    ``value`` is the loss itself where the root is a single number, else the norm of the root; ``scaled`` says that a
    GradScaler's factor is still in it. ``unused``: no backward was called on it.
    """

    value: Tensor
    micro_step: int
    exact: bool
    scaled: bool
    unused: bool = False


class Losses(threading.local):
    """Collects the roots of backward calls until the next optimizer step; of each thread that trains its own.

    ``dropped`` are those of which no step was made.
    """

    def __init__(self) -> None:
        self.pending: list[Loss] = []
        self.dropped: list[Loss] = []
        self._unscaled: dict[int, tuple[Weakly, Tensor]] = {}

    def scaled(self, plain: Tensor, scaled: Tensor) -> None:
        """Remember that ``scaled`` is ``plain`` times a loss scale."""
        self._unscaled[id(scaled)] = (Weakly(scaled), plain.detach())

    def seen(self, root: Tensor, micro_step: int) -> None:
        """Take one root of a backward call, without reading the host."""
        if len(self.pending) >= _MANY:
            return
        if type(root) is torch.Tensor and not self._unscaled and root.dtype in _FLOATS and root.numel() == 1:
            value = root.detach()
            if (
                root._is_view()
            ):  # what it lies in may be let go of before the step's end, and need not be held until then
                if not is_there(value):
                    return
                value = value.clone()
            self.pending.append(Loss(value, micro_step, exact=True, scaled=False))
            return
        known = self._unscaled.pop(id(root), None)
        plain = known[1] if known is not None and known[0]() is root else None
        data = local(plain if plain is not None else root)
        if data is None:
            return
        scaled = known is not None and plain is None
        self.pending.append(Loss(_number_of(data), micro_step, exact=data.numel() == 1, scaled=scaled))

    def take(self, roots: list[Tensor], micro_step: int) -> None:
        """Take the roots of a backward call."""
        if len(roots) == 1 and type(roots[0]) is Tensor and not _stacked() and not _dispatched():
            self.seen(roots[0], micro_step)  # nobody would see it
            return
        with quiet():
            for root in roots:
                self.seen(root, micro_step)

    def drop(self) -> None:
        """Set the pending roots apart: their gradients were thrown away before a step was made of them."""
        if len(self.dropped) < _MANY:
            self.dropped += self.pending
        self.pending = []

    def unused(self, tensor: Tensor, micro_step: int) -> Tensor:
        """Set a loss apart that no backward was called on, or a norm of gradients that no step was made of.

        Returns the number that it is looked at by.
        """
        value = _number_of(tensor)
        if len(self.dropped) < _MANY:
            self.dropped.append(Loss(value, micro_step, exact=True, scaled=False, unused=True))
        return value

    def clear(self) -> None:
        """Forget all roots: a step was made or left out."""
        self.pending.clear()
        self.dropped.clear()
        self._unscaled.clear()


def _number_of(data: Tensor) -> Tensor:
    """Return the one number in ``data``, else its norm: in float64 that of finite values does not overflow."""
    return data.reshape(()) if data.numel() == 1 else torch.linalg.vector_norm(data, dtype=torch.float64)


def roots_of(roots: Any) -> list[Tensor]:
    """Return the tensors that ``torch.autograd.backward`` was given; edges of the graph have no value to look at.

    Nor have the stand-ins that a compiler traces with.
    """
    if type(roots) is Tensor:
        return [roots]
    many = (roots,) if isinstance(roots, Tensor) else tuple(roots)
    return [one for one in many if isinstance(one, Tensor) and not _is_stand_in(one)]


def _is_stand_in(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor and type(tensor).__module__.startswith("torch._subclasses")


def factor_of(loss: Tensor) -> float:
    """Return the number that ``loss`` is a product with; before its backward, which lets go of what it needs."""
    with suppress(RuntimeError), quiet():
        node = loss.grad_fn
        other = getattr(node, "_saved_other", None) if node is not None and "MulBackward" in node.name() else None
        if isinstance(other, Tensor) and other.numel() == 1 and not other.requires_grad:
            return float(other)
    return 1.0


def factors_of(roots: Sequence[Tensor], given: Any = None) -> list[Factor]:
    """Return the numbers that each of ``roots`` was multiplied by (with 1) or divided by (with -1) at last, unread.

    Of a sum they are those that all addends have. ``given`` is what a backward begins with, where that is not 1.
    Before its backward, which lets go of what it needs. A number on a device is read by no one here.
    """
    gradients = list(given) if isinstance(given, list | tuple) else [given] * len(roots)
    with suppress(RuntimeError), quiet():
        pairs = zip(roots, gradients, strict=False)
        return _common([[*_of_gradient(gradient), *_of_node(root.grad_fn, [_MOST_NODES])] for root, gradient in pairs])
    return []


def _of_gradient(given: Any) -> list[Factor]:
    one_number = isinstance(given, Tensor) and given.numel() == 1 and not given.requires_grad
    return [(given, 1)] if one_number else []


def _of_node(node: Any, left: list[int]) -> list[Factor]:
    """Return the factors behind ``node``, of so many nodes that are ``left`` to be gone through."""
    found: list[Factor] = []
    while node is not None and left[0] > 0:
        left[0] -= 1
        following = [one for one, _ in node.next_functions if one is not None]
        name = node.name()
        number = _number(node) if name.startswith(_PRODUCTS) else None
        if name.startswith(_SUMS) and getattr(node, "_saved_alpha", 1) == 1 and len(following) > 1:
            return found + _common([_of_node(one, left) for one in following])
        if len(following) != 1 or (number is None and not name.startswith((*_LINEAR, *_SUMS))):
            break
        found += [] if number is None else [(number, -1 if name.startswith("Div") else 1)]
        node = following[0]
    return found


def _common(lists: list[list[Factor]]) -> list[Factor]:
    """Return what stands in each of the ``lists``, as often as in all of them."""
    first, *others = lists or [[]]
    for other in others:
        rest, shared = list(other), []
        for one in first:
            same = next((place for place, each in enumerate(rest) if _is_same(one, each)), None)
            if same is not None:
                rest.pop(same)
                shared.append(one)
        first = shared
    return first


def _is_same(one: Factor, other: Factor) -> bool:
    (number, power), (second, power_of_second) = one, other
    if power != power_of_second:
        return False
    if number.is_cpu and second.is_cpu:
        return float(number) == float(second)
    return number.device == second.device and number.data_ptr() == second.data_ptr()


def _number(node: Any) -> Tensor | None:
    # What is divided is no divisor.
    names = ("_saved_other",) if node.name().startswith("Div") else ("_saved_other", "_saved_self")
    saved = [getattr(node, name, None) for name in names]
    return next((one for one in saved if isinstance(one, Tensor) and one.numel() == 1 and not one.requires_grad), None)


_PRODUCTS = ("MulBackward", "DivBackward")
_LINEAR = ("MeanBackward", "SumBackward", "ToCopyBackward", "NegBackward")
_SUMS = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
_MOST_NODES = 64


def divided(args: tuple[Any, ...], kwargs: dict[str, Any], factor: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the words of a backward with gradients to begin with that take ``factor`` away."""
    words = dict(zip(("tensors", "grad_tensors", "retain_graph", "create_graph"), args, strict=False)) | kwargs
    roots, given = words["tensors"], words.get("grad_tensors")
    if isinstance(roots, Tensor):
        return (), {**words, "grad_tensors": _over(roots, given, factor)}
    begun = [None] * len(roots) if given is None else list(given)
    return (), {**words, "grad_tensors": [_over(*pair, factor) for pair in zip(roots, begun, strict=True)]}


def _over(root: Tensor, given: Any, factor: float) -> Tensor:
    return torch.full_like(root, 1.0 / factor) if given is None else given / factor

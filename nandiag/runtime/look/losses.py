"""The tensors that ``backward()`` was called on since the last optimizer step, and their loss scale (worker)."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import local, quiet
from nandiag.runtime.memory.there import is_there

_MANY = 4096
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


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
        self._unscaled: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def scaled(self, plain: Tensor, scaled: Tensor) -> None:
        """Remember that ``scaled`` is ``plain`` times a loss scale."""
        self._unscaled[id(scaled)] = (weakref.ref(scaled), plain.detach())

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


def factors_of(loss: Tensor) -> list[tuple[Tensor, int]]:
    """Return the numbers that the last ops before ``loss`` multiply by (with 1) or divide by (with -1), unread.

    Before its backward, which lets go of what it needs. A number on a device is read by no one here.
    """
    found: list[tuple[Tensor, int]] = []
    node: Any = loss.grad_fn
    with suppress(RuntimeError), quiet():
        for _ in range(_MOST_FACTORS):
            following = [] if node is None else [one for one, _ in node.next_functions if one is not None]
            name = "" if node is None else node.name()
            number = _number(node) if name.startswith(_PRODUCTS) else None
            if len(following) != 1 or (number is None and not name.startswith(_LINEAR)):
                break
            found += [] if number is None else [(number, -1 if name.startswith("Div") else 1)]
            node = following[0]
    return found


def _number(node: Any) -> Tensor | None:
    # What is divided is no divisor.
    names = ("_saved_other",) if node.name().startswith("Div") else ("_saved_other", "_saved_self")
    saved = [getattr(node, name, None) for name in names]
    return next((one for one in saved if isinstance(one, Tensor) and one.numel() == 1 and not one.requires_grad), None)


_PRODUCTS = ("MulBackward", "DivBackward")
_LINEAR = ("MeanBackward", "SumBackward", "ToCopyBackward", "NegBackward")
_MOST_FACTORS = 8


def divided(args: tuple[Any, ...], kwargs: dict[str, Any], factor: float) -> tuple[Any, ...]:
    """Return the arguments of a backward from one loss with a gradient to begin with that takes ``factor`` away.

    Raises Refused where it is not one loss, or begins with a gradient of the script's.
    """
    given = [*args[1:2], kwargs.get("grad_tensors")]
    if not args or not isinstance(args[0], Tensor) or any(one is not None for one in given):
        raise Refused("a backward that begins with a gradient of the script's is not run without a factor")
    return args[0], torch.full_like(args[0], 1.0 / factor), *args[2:]

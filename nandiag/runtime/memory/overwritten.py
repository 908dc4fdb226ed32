"""What memory that a replay did not make held before one of its ops wrote into it (worker)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.guard import Refused
from nandiag.runtime.kernels.written import unsaid
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.packed.nested import tensors_in

_MOST_BYTES = 1 << 28
# A state that these take their dropout from, and move on in place, without their schema saying so: the library's, kept
# by torch out of everybody's sight, for all layers on a device.
_DROP = {f"aten::{name}{end}": "dropout_state" for name in ("_cudnn_rnn", "miopen_rnn") for end in ("", "_backward")}


class Overwritten:
    """Copies what an op is about to write over, wherever the script holds it, and gives it back in the end.

    At most 256 MiB are copied. What is beyond them is written over where the run ``ends`` afterwards; where it goes
    on, the op is refused.
    """

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._bytes = 0
        self._seen: set[tuple[Any, ...]] = set()
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._versions = contextlib.ExitStack()
        self.drew = False  # whether an op ran that draws from such a state, which nobody can set back to what it was

    def before(self, tensors: Iterable[Tensor]) -> None:
        """An op is about to write into these; raises Refused where they could not be given back."""
        for one in tensors:
            place = _place(one)
            if place in self._seen or not all_there([one]):
                continue
            self._bytes += one.numel() * one.element_size()
            if self._bytes <= _MOST_BYTES:
                self._seen.add(place)
                self._keep(one)
            elif not self._ends:
                raise Refused("the step writes over more than could be put back, and the run goes on after it")

    def close(self) -> None:
        """Give all memory its own values again, the newest copy first, and the tensors their versions; begin anew."""
        self._seen.clear()
        self._bytes = 0
        with torch.no_grad(), self._versions:
            while self._copies:
                one, value = self._copies.pop()
                if all_there([one]):
                    one.copy_(value)

    def _keep(self, one: Tensor) -> None:
        if not one.is_inference():
            self._versions.enter_context(torch.autograd.grad_mode._unsafe_preserve_version_counter(one))
        held = one.detach()
        self._copies.append((held, held.clone()))


def drawn_from(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the state that an op takes its dropout from and moves on; a layer that drops nothing is given none."""
    name = _DROP.get(func._schema.name)
    if name is None:
        return []
    place = [one.name for one in func._schema.arguments].index(name)
    return tensors_in([args[place] if place < len(args) else kwargs.get(name)])


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors among its arguments that an op writes into, whether its schema marks them or not."""
    schema = func._schema
    if schema.name.startswith("fsdp::"):
        return []  # what FSDP gathers into is its own, and is let go of between two steps
    if schema.name.startswith("c10d::"):
        return tensors_in(args[:1])
    if statistics := unsaid(func, args):
        return statistics
    if schema.name in _DROP:
        return drawn_from(func, args, kwargs)
    if not schema.is_mutable:
        return []
    marked = [(place, one) for place, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]
    return tensors_in([args[place] if place < len(args) else kwargs.get(one.name) for place, one in marked])


def outs_of(func: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors that an op is given to put its results in (``out=``): what they held is no input of it."""
    outs = [one for one in func._schema.arguments if one.kwarg_only and one.alias_info and one.alias_info.is_write]
    return tensors_in([kwargs.get(one.name) for one in outs if one.name.startswith("out")])


def _place(one: Tensor) -> tuple[Any, ...]:
    if one.layout is not torch.strided:
        return (id(one),)
    return one.data_ptr(), one.dtype, one.shape, one.stride()

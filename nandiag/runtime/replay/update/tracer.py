"""The tracer of an update that is made again by one rank alone (worker)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from nandiag.events import words
from nandiag.runtime.evidence.explain import scalars_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.replay.trace.tracer import Communicates, Tracer
from nandiag.runtime.replay.update.peers import by_itself
from nandiag.runtime.tape.packed.nested import tensors_in

# Seconds; more than any update takes.
_LONGEST = 20.0


class UpdateTracer(Tracer):
    """A tracer that knows of what op the numbers are that the update reads to Python and hands to an op again.

    ``made_up`` is the memory of what stands in for weights of which nothing is left, and of all that was made of it;
    ``into_stood`` are the ops, by index, that write into what ``stood`` in for bad state, in place;
    ``asks``: the update asks the other ranks, which are not there: ``theirs`` stands for each of their numbers.
    """

    too_long = f"to make the update again takes too long: more than {_LONGEST:.0f} s"

    def __init__(self, theirs: float, spot: Spot, overwritten: Overwritten, stood: Sequence[torch.Tensor] = ()) -> None:
        super().__init__({}, joint=False)
        self.spots.base, self.overwritten = spot, overwritten
        self.asks, self._theirs = False, theirs
        self.until = time.perf_counter() + _LONGEST  # an update may go on until all ranks agree
        self.made_up: set[int | None] = set()
        self._of_made_up: dict[int, list[bool]] = {}
        self._all_of_made_up = False
        self._stood = set(map(storage, stood))
        self.into_stood: set[int] = set()
        self._reads: list[Op] = []
        self._read_at: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one op and look at it; a number that other ranks had a part in is none to go by."""
        if self.asks and func is torch.ops.aten._local_scalar_dense.default:
            raise Communicates(
                "the update goes on by what other ranks hold, and not every rank takes part in this replay"
            )
        given = tensors_in((args[1:] if _is_after(func) else args, kwargs or {}))
        guessed = self._all_of_made_up or (bool(self.made_up) and any(storage(one) in self.made_up for one in given))
        which = self._made_up_of(args, kwargs or {}) if guessed else []
        output = super().__torch_dispatch__(func, types, args, kwargs)
        if self._stood and _is_in_place(func) and any(storage(one) in self._stood for one in tensors_in(args[:1])):
            self.into_stood.add(self.ops)
        if guessed:
            self._of_made_up[self.ops] = which
            self._goes_on(func, tensors_in(args[:1]), tensors_in(output))
        if func is torch.ops.aten._local_scalar_dense.default and type(output) is float and not math.isfinite(output):
            writer = self.writer(args[0])
            if writer is not None:
                self._reads.append(writer)
                self._read_at.append(self.ops)
        return output

    def _goes_on(self, func: Any, first: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Note an op that was given a guess: what it makes, or writes into, is one, and all behind a number it read."""
        if func is torch.ops.aten._local_scalar_dense.default:
            self._all_of_made_up = True
        written = any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments)
        self.made_up.update(map(storage, [*made, *(first if written else ())]))

    def _made_up_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        return [storage(one) in self.made_up for one in tensors_in((args, list(kwargs.values())))]

    def of_made_up(self, op: Op) -> list[bool] | None:
        """Return which of its tensors ``op`` was given of what stood in for weights of which nothing is left.

        None where it has nothing of that at all; none of them where it was given a number that came of it.
        """
        return self._of_made_up.get(op.index)

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        instead = by_itself(func, self._theirs)
        if instead is None:
            return super()._collective(func, args, kwargs)
        self.asks = True
        return self._op(func, args, kwargs, instead)

    def read_before(self, op: Op) -> Op | None:
        """Return what made the last bad number that was read before ``op``, where ``op`` was handed a bad one."""
        numbers = (words.as_number(word) for word in scalars_of(op).values())
        if not any(one is not None and not math.isfinite(one) for one in numbers):
            return None
        pairs = zip(reversed(self._reads), reversed(self._read_at), strict=True)
        return next((read for read, at in pairs if at < op.index), None)


def _is_in_place(func: Any) -> bool:
    return str(func._schema.name).endswith("_")


def _is_after(func: Any) -> bool:
    """Whether an op takes of its first argument the shape and the kind alone: ``zeros_like``, ``new_zeros``."""
    name = str(func._schema.name).partition("::")[2]
    return name.endswith("_like") or name.startswith("new_")

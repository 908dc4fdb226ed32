"""Memory that the script's loop was handed unwritten, while all that writes there are calls that are seen (worker).

Such memory may live for many steps, a history or a replay buffer, and is filled bit by bit. What is bad in it though
all that was written there was finite is what nobody wrote.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.births.known import Call
from nandiag.runtime.frames import TORCH, USER, Frame, kind_of, places, source
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.memory.laid import is_finite, onto_itself
from nandiag.runtime.memory.there import storage_of
from nandiag.runtime.tape.packed.words import version_of

_MOST, _FRAMES, _LARGEST = 1024, 6, 1 << 20
_FILLS = frozenset({"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"})

_WHERE = frozenset({"data_ptr", "untyped_storage"})


@lru_cache(maxsize=1024)
def _says_so(code: CodeType, instruction: int) -> bool:
    """Whether a line is the script's own, and calls for such memory by name."""
    frame = Frame(code, instruction)
    return frame.kind == USER and "empty" in (source(frame, frame.line) or "")


class Out(NamedTuple):
    """The call that handed the memory out, in which step; ``version`` counts the writes that were seen."""

    memory: StorageWeakRef
    call: Call
    step: int
    version: int


class HandedOut:
    """Such memory by its key."""

    def __init__(self) -> None:
        self._made: dict[int, Out] = {}
        self._doubt: int | None = None

    @property
    def doubts(self) -> bool:
        """Whether a call is on that computes what it writes there, which may not be finite."""
        return self._doubt is not None

    def out(self, name: str, tensor: Tensor, step: int) -> None:
        """A call of the script's loop returned ``tensor``, of which nothing is written yet."""
        if not tensor.is_floating_point() or tensor.is_inference() or tensor.device.type == "meta":
            return
        nearest = places(sys._getframe(2), 1)[0]  # a loop that builds modules comes by for each of their weights
        if not nearest or not _says_so(*nearest[0][:2]):
            return  # torch itself, and libraries, have C++ fill theirs unseen
        call = Call(name, places(sys._getframe(2), _FRAMES)[0])
        if len(self._made) >= _MOST:
            self._made = {key: one for key, one in self._made.items() if not one.memory.expired()}
        if len(self._made) < _MOST:
            self._made[storage_of(tensor)] = Out(
                StorageWeakRef(tensor.untyped_storage()), call, step, version_of(tensor)
            )

    def writes(self, name: str, target: Tensor, laid: object) -> None:
        """A call is about to write into ``target``, ``laid`` as it is, or what it computes (None)."""
        self._settle()
        known = self.known(target)
        if known is None:
            return
        whole = target.numel() * target.element_size() >= target.untyped_storage().nbytes()
        back = onto_itself(name, target, laid)
        kept = back or (self._may_keep(target) if laid is None else is_finite(laid))
        if (whole and name in _FILLS and not back) or not kept or version_of(target) != known.version:
            self.forget(target)
        else:
            self._made[storage_of(target)] = known._replace(version=known.version + 1)

    def _may_keep(self, target: Tensor) -> bool:
        """Whether a call that computes what it writes may be followed: where it is finite before it is to be after."""
        if not target.is_cpu or target.numel() > _LARGEST:
            return False
        self._doubt = None if is_bad(target) else storage_of(target)
        return True

    def wrote(self, target: Tensor) -> None:
        """The call that was about to write has written."""
        with quiet():
            if self._doubt == storage_of(target) and not is_bad(target):
                self._doubt = None
        self._settle()

    def _settle(self) -> None:
        if self._doubt is not None:
            self._made.pop(self._doubt, None)
            self._doubt = None

    def forget(self, tensor: Tensor) -> None:
        """Something else has written there, or may from now on."""
        if self._made:
            self._made.pop(storage_of(tensor), None)

    def exposed(self, name: str, tensor: Tensor, frame: FrameType) -> None:
        """A call from ``frame`` hands the memory on: others than torch may write there from now on.

        Where torch itself asks where it lies, to shard a weight say, it only compares that.
        """
        if name not in _WHERE or kind_of(frame.f_code.co_filename) != TORCH:
            self.forget(tensor)

    def of(self, tensor: Tensor, version: int | None = None) -> Out | None:
        """Return who handed out the memory of ``tensor``, where all writes up to ``version`` were seen; None else."""
        self._settle()
        known, version = self.known(tensor), version_of(tensor) if version is None else version
        return known if known is not None and version == known.version else None

    def known(self, tensor: Tensor) -> Out | None:
        """Return who handed it out, whatever has written there since."""
        known = self._made.get(storage_of(tensor)) if self._made and not tensor.is_inference() else None
        return None if known is None or known.memory.expired() else known

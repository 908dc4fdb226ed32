"""Memory that a line of the script's own was handed unwritten, and that it has filled in part at most (worker).

What is left of it as it was is a value of nothing: where it is bad, the line that was handed it is the origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import USER, source
from nandiag.runtime.levels.ops.watched import Watched
from nandiag.runtime.memory.known.unwritten import as_filled, keeps_parts
from nandiag.runtime.memory.there import key_of

_MOST = 4096


class Handed:
    """Such memory by its key, with the op that handed it out; it lives as long as the memory does."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[StorageWeakRef, Watched]] = {}
        self._bare: set[int] = set()

    @property
    def any(self) -> bool:
        """Whether there is any such memory."""
        return bool(self._made)

    def out(self, tensors: Iterable[Tensor], spot: Spot, op: Callable[[], Watched]) -> None:
        """Memory is handed out at ``spot``; torch itself, and libraries, fill theirs unseen."""
        frame = next(iter(spot.frames), None)
        own = frame is not None and frame.kind == USER and "empty" in (source(frame, frame.line) or "")
        for tensor in tensors:
            if own and tensor.is_floating_point() and len(self._made) < _MOST:
                self._made[key_of(tensor)] = StorageWeakRef(tensor.untyped_storage()), op()
                self._bare.add(key_of(tensor))
            else:
                self.forget([key_of(tensor)])

    def forget(self, keys: Iterable[int]) -> None:
        """Something has filled this memory, all of it or unseen."""
        for key in keys:
            self._made.pop(key, None)
            self._bare.discard(key)

    def let_go(self) -> None:
        """Forget of memory that is gone."""
        self.forget([key for key, made in self._made.items() if made[0].expired()])

    def wrote(self, func: Any, tensor: Tensor) -> Watched | None:
        """An op has written into ``tensor``: return who handed the memory out where part of it may be as it was."""
        made = self._made.get(key_of(tensor))
        self._bare.discard(key_of(tensor))
        if made is None or made[0].expired():
            return None
        whole = tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
        if whole and not keeps_parts(func):
            self.forget([key_of(tensor)])
            return None
        return made[1]

    def reads(self, tensor: Tensor) -> Watched | None:
        """Return who handed out what is read where nobody has written, and torch fills what it hands out."""
        made = self._made.get(key_of(tensor)) if key_of(tensor) in self._bare else None
        return made[1] if made is not None and not made[0].expired() and as_filled(tensor) else None

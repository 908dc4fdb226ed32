"""Memory of numpy's that torch takes as it is: no mode is asked of it (worker).

Before the first step the prelude is told; later the newest calls are noted, to name their line if they were bad.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.births.prelude import Prelude
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.frames import Trail, trail
from nandiag.runtime.guard import guarded
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tracebacks import pass_on

_TAKES = ("from_numpy", "frombuffer", "from_dlpack")
_MOST = 64


class Taken:
    """The newest tensors that were laid over others' memory in mid-run, by weak references, and where that was."""

    def __init__(self) -> None:
        self._newest: deque[tuple[Weakly, Trail]] = deque(maxlen=_MOST)

    def took(self, taken: Tensor, frame: Any) -> None:
        """A tensor was laid over such memory by a call from ``frame``."""
        self._newest.append((Weakly(taken), trail(frame)))

    def of(self, tensor: Tensor) -> tuple[Tensor, Trail] | None:
        """Return the whole of what ``tensor`` lies in, and where it was taken; None where it is not known."""
        key = storage(tensor)
        for reference, at in reversed(self._newest):
            held = reference()
            if held is not None and storage(held) == key:
                return held, at
        return None


TAKEN = Taken()


def watch_taken(prelude: Prelude) -> None:
    """Have the ``prelude`` told, while it sees, of each tensor that lies in memory of others."""
    for name in _TAKES:
        _wrap(prelude, name)


def _wrap(prelude: Prelude, name: str) -> None:
    original = getattr(torch, name)
    tell, note = guarded(prelude.probe)(prelude.took), guarded("births")(TAKEN.took)

    @functools.wraps(original)
    def take(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        try:
            taken = original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if prelude.on:
            tell(name, original, taken, sys._getframe(1))
        else:
            note(taken, sys._getframe(1))
        return taken

    setattr(torch, name, take)

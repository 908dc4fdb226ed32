"""Memory of numpy's that torch takes as it is, before the first step: no mode is asked of it (worker)."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from nandiag.runtime.births.prelude import Prelude
from nandiag.runtime.guard import guarded
from nandiag.runtime.tracebacks import pass_on

_TAKES = ("from_numpy", "frombuffer", "from_dlpack")


def watch_taken(prelude: Prelude) -> None:
    """Have the ``prelude`` told, while it sees, of each tensor that lies in memory of others."""
    for name in _TAKES:
        _wrap(prelude, name)


def _wrap(prelude: Prelude, name: str) -> None:
    original = getattr(torch, name)
    tell = guarded(prelude.probe)(prelude.took)

    @functools.wraps(original)
    def take(*args: Any, **kwargs: Any) -> Any:
        if not prelude.on or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        try:
            taken = original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        tell(name, original, taken, sys._getframe(1))
        return taken

    setattr(torch, name, take)

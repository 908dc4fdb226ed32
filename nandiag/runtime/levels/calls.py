"""Every call of every module, told to whoever listens (worker).

``nn.Module.__call__`` is wrapped when the first listener comes and not before, so that a run without one pays nothing.
Global forward hooks would do the same but for keyword arguments, for calls that raise and for the order of the stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from nandiag.runtime.tracebacks import pass_on


class Listener(Protocol):
    """Who is told of each call; its methods are guarded, for here nothing would keep an error from the script."""

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``module`` is about to be called; returns what stands for the call, None to hear no more of it."""

    def leaves(self, call: Any) -> None:
        """The ``call`` is over: it has returned or raised."""

    def ended(self, call: Any, output: Any) -> None:
        """The ``call`` returned ``output``."""


def listen(listener: Listener, active: Callable[[], bool]) -> None:
    """Tell ``listener`` of each module call that is not compiled while ``active()``, which is guarded as well."""
    original = nn.Module.__call__

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        one = None
        if not torch.compiler.is_compiling() and active():
            one = listener.begins(self, args, kwargs)
        if one is None:
            return original(self, *args, **kwargs)
        try:
            output = original(self, *args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        finally:
            listener.leaves(one)
        listener.ended(one, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]

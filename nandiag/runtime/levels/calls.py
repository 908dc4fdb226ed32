"""Every call of every module, told to whoever listens (worker).

``nn.Module.__call__`` is wrapped when the first listener comes and not before, so that a run without one pays nothing.
Global forward hooks would do the same but for keyword arguments, for calls that raise and for the order of the stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Around = Callable[[Callable[..., Any], nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def listen(around: Around, idle: Callable[[], bool]) -> None:
    """Have ``around(call, module, args, kwargs)`` make each module call that is not compiled, unless ``idle()``."""
    original = nn.Module.__call__

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or idle():
            return original(self, *args, **kwargs)
        return around(original, self, args, kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]

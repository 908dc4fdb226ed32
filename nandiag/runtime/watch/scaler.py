"""GradScaler: which updates it left out, and the plain loss behind a scaled one (worker).

It offers no hooks, so two of its methods are wrapped right after torch is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from nandiag.runtime.guard import guarded
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tracebacks import pass_on

OnSkip = Callable[[float | None, torch.optim.Optimizer], None]
OnScale = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None]


def watch_scaler(updates: Callable[[torch.optim.Optimizer], int], on_skip: OnSkip, on_scale: OnScale) -> None:
    """Wrap ``GradScaler``: ``on_skip(scale, optimizer)`` for an update left out, ``on_scale(plain, scaled, scale)``."""
    _wrap_step(updates, guarded("scaler")(on_skip))
    _wrap_scale(guarded("scaler")(on_scale))


def _wrap_step(updates: Callable[[torch.optim.Optimizer], int], on_skip: OnSkip) -> None:
    original = GradScaler._maybe_opt_step

    @functools.wraps(original)
    def maybe_step(self: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = updates(optimizer)
        try:
            result = original(self, optimizer, *args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        if updates(optimizer) == before and not RECORDER.is_dark("sentinel"):  # which counts the updates
            on_skip(scale_of(self), optimizer)
        return result

    GradScaler._maybe_opt_step = maybe_step  # type: ignore[method-assign]


def _wrap_scale(on_scale: OnScale) -> None:
    original = GradScaler.scale

    @functools.wraps(original)
    def scale(self: GradScaler, outputs: Any) -> Any:
        try:
            scaled = original(self, outputs)
        except BaseException as error:
            pass_on(error)
            raise
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor) and scaled is not outputs:
            on_scale(outputs, scaled, self._scale)
        return scaled

    GradScaler.scale = scale  # type: ignore[method-assign]


def scale_of(scaler: GradScaler) -> float | None:
    """Return the scaler's present scale, None before its first use."""
    scale = getattr(scaler, "_scale", None)
    return None if scale is None else float(scale.item())

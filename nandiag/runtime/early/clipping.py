"""The gradient norm before the script clips it: afterwards every spike looks the same (worker)."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from nandiag.runtime.early.warner import Warner
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.tracebacks import pass_on


def watch_clipping(warner: Warner) -> None:
    """Wrap ``clip_grad_norm_``, which returns the total norm (0-d) that the gradients had."""
    original = torch.nn.utils.clip_grad_norm_

    @guarded("warnings")
    def clipped(norm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with quiet():
            if type(norm) is torch.Tensor and norm.dim() == 0:
                warner.clipped(norm.detach(), _most(*args[1:2], **kwargs))

    @functools.wraps(original)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        try:
            norm = original(*args, **kwargs)
        except BaseException as error:
            pass_on(error)
            raise
        # Dynamo takes the first word for true and traces no further into ours.
        if not torch.compiler.is_compiling():
            clipped(norm, args, kwargs)
        return norm

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_


def _most(max_norm: Any = None, **_: Any) -> float | None:
    """Return the norm that is clipped to; an infinite one only measures."""
    return float(max_norm) if isinstance(max_norm, int | float) and math.isfinite(max_norm) else None

"""The collectives a script calls itself, with their line: a replay on one rank cannot make them again (worker)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from nandiag.runtime.frames import Frame, stack
from nandiag.runtime.tape.capture import Capture

_NAMES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "all_to_all", "all_to_all_single", "all_reduce_coalesced", "gather", "scatter", "recv", "irecv",
)  # fmt: skip
_MOST = 256


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of a collective by the script: its name, the user's frames, and after how many backward calls."""

    name: str
    frames: tuple[Frame, ...]
    micro_step: int


def watch_exchanges(capture: Capture) -> None:
    """Wrap the collectives of ``torch.distributed``; each call costs one walk to the user's line."""
    if not dist.is_available():
        return
    for name in _NAMES:
        original = getattr(dist, name, None)
        if original is not None:
            wrapped = _noting(capture, name, original)
            setattr(dist, name, wrapped)
            setattr(dist.distributed_c10d, name, wrapped)


def _noting(capture: Capture, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not capture.depth and not capture.idle and len(capture.exchanges) < _MOST:
            frames, _ = stack(sys._getframe(1), 4)
            if frames:
                capture.exchanges.append(Exchange(name, frames, capture.window.micro_step))
        return original(*args, **kwargs)

    return collective

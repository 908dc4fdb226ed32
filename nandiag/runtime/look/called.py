"""What the script calls its optimizer and its model, where it makes a step: for advice in its own names (worker).

Looked up when there is harm, and only then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.runtime.frames import USER, kind_of

_FRAMES = 40


def called(optimizer: torch.optim.Optimizer | None, leaves: Iterable[Tensor] = ()) -> dict[str, str]:
    """Return ``optimizer`` and ``model``: names that mean them in the script's innermost frame that has one.

    ``leaves`` are what is trained where the script makes its updates by hand. ``handed`` is the model's name in the
    outermost frame that knows the optimizer, where it is another: there the optimizer is made, or near there.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    trained = {id(one) for one in [*(one for group in groups for one in group["params"]), *leaves]}
    known: dict[str, str] = {}
    for frame in _user_frames(sys._getframe(1)):
        names = dict(reversed(list(_names(frame, optimizer, trained))))  # a loop's name comes behind its own
        known = known or names
        if known is not names and names.keys() >= {"model", "optimizer"}:
            known = {**known, "handed": names["model"]}
    same = known.get("handed") == known.get("model")
    return {what: name for what, name in known.items() if not (same and what == "handed")}


def line_at_work() -> str | None:
    """Return the script's own line that called this, ``ckpt.py:22``, where there is one."""
    frame = next(_user_frames(sys._getframe(1)), None)
    return None if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def holder(tensor: Tensor) -> str | None:
    """Return what the script calls the smallest module that holds ``tensor``, a weight or a buffer, where it stands."""
    for frame in _user_frames(sys._getframe(1)):
        known = [(name, one) for name, one in _known(frame) if name.removeprefix("self.").isidentifier()]
        modules = [(name, one) for name, one in known if issubclass(type(one), nn.Module)]
        held = [(len(own), name) for name, one in modules if id(tensor) in (own := _tensors(one))]
        if held:
            return min(held, key=lambda pair: pair[0])[1]
    return None


def _tensors(module: nn.Module) -> set[int]:
    return set(map(id, (*module.parameters(), *module.buffers())))


def _user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_FRAMES):
        if frame is None:
            return
        if kind_of(frame.f_code.co_filename) is USER:
            yield frame
        frame = frame.f_back


def _names(frame: FrameType, optimizer: object, trained: set[int]) -> Iterator[tuple[str, str]]:
    models: list[tuple[int, str]] = []
    for name, value in _known(frame):
        if optimizer is not None and value is optimizer:
            yield "optimizer", name
        elif issubclass(type(value), nn.Module):
            own = {id(one) for one in value.parameters()}
            if own and trained and trained <= own:
                models.append((len(own - trained), name))
    if models:
        yield "model", min(models)[1]


def _known(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the names that a line in this frame could use: locals, what ``self`` holds, globals."""
    known: Mapping[str, Any] = frame.f_locals
    owner = known.get("self")
    attributes = getattr(owner, "__dict__", {}) if owner is not None else {}
    inside = [(f"self.{name}", value) for name, value in list(attributes.items()) if name.isidentifier()]
    outside = [] if known is frame.f_globals else list(frame.f_globals.items())
    yield from [pair for pair in (*known.items(), *inside, *outside) if not pair[0].startswith("_")]

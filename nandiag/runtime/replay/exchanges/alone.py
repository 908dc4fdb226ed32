"""Models as one rank can run them again by itself: what DDP wraps, without what DDP exchanges (worker)."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nandiag.runtime.tape.entry import ROOT, Entry
from nandiag.runtime.tape.loop.forwards import Forward


def is_ddp(module: nn.Module) -> bool:
    """Whether a module is DDP's, which wraps another."""
    return "reducer" in vars(module) and "require_backward_grad_sync" in vars(module)


def ddps_in(root: nn.Module) -> list[Any]:
    """Return the DDP that a root is, or those that trainers have wrapped in their own."""
    return [root] if is_ddp(root) else [one for one in root.modules() if is_ddp(one)]


def without_collectives(entry: Entry, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Return what to call for a taped call: for that of DDP the module that it wraps, which needs no other rank."""
    if entry.kind != ROOT or not is_ddp(function):
        return function, args, kwargs
    return (function.module, *_as_given(function, args, kwargs))


def forwards_of(entry: Entry) -> Sequence[Forward]:
    """Return those that the modules of a call were called by, of a DDP within the root one without collectives."""
    if entry.kind != ROOT or is_ddp(entry.function):
        return entry.forwards
    ddps = ddps_in(entry.function)
    within = [(weakref.ref(one), functools.partial(_called, one)) for one in ddps]
    return [*entry.forwards, *within]


def _called(ddp: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _as_given(ddp, args, kwargs)
    return ddp.module(*args, **kwargs)


def _as_given(ddp: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return what DDP gives to its module."""
    if not getattr(ddp, "device_ids", None):
        return args, kwargs
    from torch.distributed.utils import _to_kwargs

    device = torch.device(ddp.device_type, ddp.device_ids[0])
    moved = _to_kwargs(args, kwargs, device, ddp.use_side_stream_for_tensor_copies)
    return moved[0][0], moved[1][0]

"""What the autograd engine's NaN check needs on DTensor: a look at this rank's own part, with no collective (worker).

Under ``detect_anomaly(check_nan=True)`` the engine asks ``isnan(output)._is_any_true().item()`` of each output of each
autograd node. DTensor knows no ``_is_any_true``, so that each such backward dies. An answer for all ranks would need a
collective inside the check: it would pair with the script's next collective as soon as ranks run different backwards,
and would raise where nothing is wrong. Here the rank that holds the NaN answers for itself, and raises.

Importing this module imports ``torch.distributed.tensor``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.utils._pytree import tree_map_only

Handler = Callable[..., Any]

_ISNAN = torch.ops.aten.isnan.default
_ANY = torch.ops.aten._is_any_true.default
_ALL = torch.ops.aten._is_all_true.default
# Without the decorator that keeps Dynamo out: the engine is never traced, and asks for every gradient.
_NEW = inspect.unwrap(DTensor.__new__)
_ENGINE = "_engine_run_backward"
_DISPATCH = "__torch_dispatch__"
# Decorators that may stand round a __torch_dispatch__.
_WRAPPERS = ("torch._compile", "torch._dynamo", "contextlib", "functools")


class LocalLook(DTensor):
    """What ``isnan`` gives the engine: an answer for this rank's part, whose meaning the next op decides.

    The engine's next op is ``_is_any_true``: it looks at this rank's part alone. A backward formula that calls
    ``isnan`` itself (that of ``max`` does) goes on with another op and gets torch's own answer, that for all ranks.
    """

    whole: DTensor

    @classmethod
    def of(cls, tensor: DTensor) -> LocalLook:
        """Return the look at ``tensor``'s local part; on a rank outside the mesh that part is empty."""
        # Shape and layout are those of `tensor`: whoever asks for more than the local answer never sees these numbers.
        look: LocalLook = _NEW(cls, _any_nan(tensor._local_tensor), tensor._spec, requires_grad=False)
        look.whole = tensor
        return look

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own annotation leaves the function out
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer the engine from the local part, anybody else with ``isnan`` of the whole."""
        del types
        if func is _ANY:
            return args[0]._local_tensor
        settled = tree_map_only(LocalLook, lambda look: global_isnan(look.whole), (args, kwargs or {}))
        return func(*settled[0], **settled[1])


def _any_nan(local: Tensor) -> Tensor:
    """Return, as one bool on the device of ``local``, whether any element is NaN."""
    if local.is_floating_point() and local.numel():
        # A maximum hands a NaN on, reads memory once and writes none: 1/18 of isnan().any() for a million floats.
        return torch.isnan(torch.amax(local))
    return torch.isnan(local).any()


def install() -> None:
    """Put the answers in place, where nobody else has, unless torch itself answers rightly.

    Raises AttributeError where torch's dispatcher has changed beyond recognition.
    """
    handlers = _handlers()
    if _torch_has_a_rule() and torch_answers():
        return
    for op, handler in _ours.items():
        handlers.setdefault(op, handler)


def uninstall() -> None:
    """Take the answers away again; those of others stay."""
    handlers = _handlers()
    for op, handler in _ours.items():
        if handlers.get(op) is handler:
            del handlers[op]


def _handlers() -> dict[Any, Handler]:
    handlers: dict[Any, Handler] = DTensor._op_dispatcher._custom_op_handlers
    return handlers


def engine_asks() -> bool:
    """Tell whether the op being dispatched was called by the autograd engine (or a C++ formula), not by Python code.

    Between the engine and a handler there may be dispatch modes and, in older torch, DTensor's own dispatch. On a
    device thread of the engine there is no frame above them at all.
    """
    if torch._C._current_graph_task_id() == -1 or not torch.is_anomaly_enabled():
        return False
    if not torch.is_anomaly_check_nan_enabled():
        return False
    direct = True
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != _ENGINE:
        if frame.f_code.co_name == _DISPATCH:
            direct = True
        elif not frame.f_globals.get("__name__", "").startswith(_WRAPPERS):
            direct = False
        frame = frame.f_back
    return direct


def _isnan(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    del op, kwargs
    return LocalLook.of(args[0]) if engine_asks() else global_isnan(args[0])


def global_isnan(tensor: DTensor) -> Tensor:
    """Return ``torch.isnan`` as torch itself answers it: part by part, after summing up what is partial."""
    with torch.no_grad():
        whole = _without_partial(tensor)
        # Not by comparison: torch 2.6 has no rule for `ne` on a DTensor.
        return DTensor.from_local(
            torch.isnan(whole._local_tensor),
            whole.device_mesh,
            whole.placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


def _without_partial(tensor: DTensor) -> DTensor:
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    # Of one that needs a gradient torch 2.6 would detach the outcome in place, for which it has no rule.
    plain: Any = tensor.detach()
    whole: DTensor = plain.redistribute(
        placements=[Replicate() if one.is_partial() else one for one in plain.placements]
    )
    return whole


def _truth(reduction: str) -> Handler:
    """Return the handler of ``_is_any_true`` (``max``) or ``_is_all_true`` (``min``): one truth for all ranks."""

    def handler(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        del kwargs
        if engine_asks():
            return op(args[0]._local_tensor)  # type: ignore[no-any-return]
        with torch.no_grad():
            tensor = _without_partial(args[0])
            # uint8: neither gloo nor NCCL promises a maximum of bool.
            local = op(tensor._local_tensor).to(torch.uint8)
            placements = [one if one.is_replicate() else Partial(reduction) for one in tensor.placements]
            partial = DTensor.from_local(local, tensor.device_mesh, placements, run_check=False)
            return partial.redistribute(placements=[Replicate()] * len(placements)).to(torch.bool)

    return handler


_ours: dict[Any, Handler] = {_ISNAN: _isnan, _ANY: _truth("max"), _ALL: _truth("min")}


def _torch_has_a_rule() -> bool:
    # Asked first because the real question, below, makes torch import half of itself.
    tables = (*vars(DTensor._op_dispatcher).values(), *vars(DTensor._op_dispatcher.sharding_propagator).values())
    return any(isinstance(table, dict) and _ANY in table for table in tables)


def torch_answers() -> bool:
    """Tell whether the installed torch answers the engine's question rightly by itself, by asking it.

    The question is asked as the second of two ranks whose mesh has no process group behind it: an answer that needs a
    collective fails. Nothing is asked of other ranks, and no random number is drawn.
    """
    try:
        mesh = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=1)
        asked: tuple[Placement, ...] = (Replicate(), Shard(0), Partial("sum"), Partial("avg"), Partial("max"))
        return all(_answer(mesh, one, bad=bad) is bad for one in asked for bad in (False, True))
    except Exception:
        return False


def _answer(mesh: DeviceMesh, placement: Placement, *, bad: bool) -> object:
    value = float("nan") if bad else 1.0
    local = torch.full((2, 2), value, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        tensor = DTensor.from_local(local, mesh, [placement], run_check=False)
        return torch.isnan(tensor)._is_any_true().item()

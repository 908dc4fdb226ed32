"""After a joint replay that broke off: FSDP2's gathered weights are let go, so that training can go on (worker)."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn


def reset_sharding(roots: list[nn.Module]) -> None:
    """Bring the FSDP2 modules below ``roots`` back to where they are between two steps; never raises.

    torch itself does so from 2.13 on; before, each module is resharded and its state set to idle.
    """
    for root in roots:
        for module in root.modules():
            state = _state_of(module)
            if state is None:
                continue
            with contextlib.suppress(Exception):
                _reset(module, state)


def _state_of(module: nn.Module) -> Any:
    asked = getattr(type(module), "_get_fsdp_state", None)
    return asked(module) if asked is not None else None


def _reset(module: Any, state: Any) -> None:
    if hasattr(state, "_reset_iter_state"):
        if state._is_root:
            state._reset_iter_state()
        return
    group = state._fsdp_param_group
    idle = type(state._training_state).IDLE
    state._training_state = idle
    if group is not None:
        group._training_state = idle
    module.reshard()
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
    state._comm_ctx.post_forward_order.clear()

"""After a joint replay that broke off: FSDP2's gathered weights are let go, so that training can go on (worker).

FSDP1 has no way back from the middle of a step: where the run goes on, a model under it is not replayed jointly.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from nandiag.runtime.replay.exchanges.alone import ddps_in


def can_break_off(roots: list[nn.Module]) -> bool:
    """Whether training could go on after a replay of these modules that did not come to its end."""
    home = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(home, "FullyShardedDataParallel", ())
    return not any(isinstance(module, kind) for root in roots for module in root.modules())


def reset_sharding(roots: list[nn.Module]) -> None:
    """Bring the FSDP2 modules below ``roots`` back to where they are between two steps; never raises.

    torch itself does so from 2.13 on; before, each module is resharded and its state set to idle. The gradients of the
    step, which torch takes for lost from 2.15 on, stay: it is only a replay that broke off.
    """
    for root in roots:
        with contextlib.suppress(Exception), _gradients_kept(root):
            for module in root.modules():
                state = _state_of(module)
                if state is None:
                    continue
                with contextlib.suppress(Exception):
                    _reset(module, state)


def let_go_of_hooks(roots: list[nn.Module]) -> None:
    """Have DDP's hooks call no other rank, which a backward that broke off has left in wait; the script is over."""
    for ddp in (ddp for root in roots for ddp in ddps_in(root)):
        with contextlib.suppress(Exception):
            ddp.reducer._remove_autograd_hooks()


@contextlib.contextmanager
def _gradients_kept(root: nn.Module) -> Iterator[None]:
    shards = [one.sharded_param for group in groups_of([root]) for one in group.fsdp_params]
    kept = [(shard, shard.grad) for shard in shards]
    yield
    for shard, gradient in kept:
        shard.grad = gradient


def _state_of(module: nn.Module) -> Any:
    asked = getattr(type(module), "_get_fsdp_state", None)
    return asked(module) if asked is not None else None


def groups_of(roots: list[nn.Module]) -> list[Any]:
    """Return the groups in which FSDP2 gathers the parameters below ``roots``, in an order that all ranks share."""
    states = [(root, _state_of(module)) for root in roots for module in root.modules()]
    found = [(len(list(root.parameters())), group) for root, state in states if state for group in _groups(state)]
    return [group for _, group in sorted(found, key=lambda one: one[0])]


def _reset(module: Any, state: Any) -> None:
    groups = _groups(state)
    # Their collectives broke off with the replay, and are not to be waited for.
    for group, name in itertools.product(groups, _UNDER_WAY):
        if hasattr(group, name):
            setattr(group, name, None)
    if not hasattr(state, "_reset_iter_state"):
        _reset_by_hand(module, state, groups)
    elif state._is_root:
        state._reset_iter_state()
    for one in (one for group in groups for one in group.fsdp_params):
        # What the backward had put together so far; the step's own gradients are sharded by now.
        one.unsharded_accumulated_grad = None
        if hasattr(one, "_unsharded_param"):
            one._unsharded_param.grad = None


def _groups(state: Any) -> list[Any]:
    several = getattr(state, "_fsdp_param_groups", None)
    return list(several) if several is not None else [one for one in (state._fsdp_param_group,) if one is not None]


def _reset_by_hand(module: Any, state: Any, groups: list[Any]) -> None:
    idle = type(state._training_state).IDLE
    state._training_state = idle
    for group in groups:
        group._training_state = idle
    module.reshard()
    state._state_ctx.iter_forward_root = None
    state._state_ctx.post_backward_final_callback_queued = False
    state._comm_ctx.post_forward_order.clear()


_UNDER_WAY = ("_all_gather_result", "_all_reduce_state", "_partial_reduce_output", "_post_reduce_event")

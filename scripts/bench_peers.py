"""What else watches for NaN, put round one benchmark step, to compare with (scripts/bench --peers)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class EachOp(TorchDispatchMode):
    """Reads after each op whether what it made is finite."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the op and look at its outputs."""
        del types
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                bool(torch.isfinite(one).all())
        return made


def leaf_hooks(model: nn.Module, *, at_once: bool) -> Callable[[], None]:
    """Look at each leaf module's output: read at once, or kept as a flag and read when the step is over."""
    flags: list[torch.Tensor] = []

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs
        if isinstance(output, torch.Tensor):
            flag = torch.isfinite(output.detach()).all()
            bool(flag) if at_once else flags.append(flag)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(look)

    def read() -> None:
        if flags:
            bool(torch.stack(flags).all())
            flags.clear()

    return read


@contextlib.contextmanager
def round_a_step(peer: str, read: Callable[[], None]) -> Iterator[None]:
    """Run one step under ``peer``."""
    if peer == "anomaly":
        with torch.autograd.detect_anomaly(check_nan=True):
            yield
    elif peer == "dispatch":
        with EachOp():
            yield
    else:
        yield
        read()


PEERS = ("anomaly", "hooks", "deferred", "dispatch")

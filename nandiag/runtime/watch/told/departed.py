"""An optimizer that is no more: what it trained is looked at when it goes with the function it lived in (worker)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.guard import guarded
from nandiag.runtime.look.weights import Optimizer


class Departed:
    """What is left of an optimizer, as those who look at weights ask for it."""

    __slots__ = ("__weakref__", "param_groups", "state")

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.param_groups = groups
        self.state: dict[Any, Any] = {}


class Departures:
    """Calls ``look`` with what is left of each optimizer that goes; keeps its parameters no longer than it lives."""

    def __init__(self, look: Callable[[Any], object]) -> None:
        self._look = look
        self._followed: MutableMapping[Optimizer, Any] = WeakIdKeyDictionary()

    def follow(self, optimizer: Optimizer) -> None:
        """Have the end of ``optimizer`` heard, with the parameters that it has now."""
        before = self._followed.pop(optimizer, None)
        if before is not None:
            before.detach()
        # Nothing of ours is above it when it goes: Python itself would print what it raises.
        gone = guarded("last look")(self._gone)
        heard = weakref.finalize(optimizer, gone, optimizer.param_groups, type(optimizer).__name__)
        heard.atexit = False
        self._followed[optimizer] = heard

    def _gone(self, groups: list[dict[str, Any]], name: str) -> None:
        if _is_quiet():
            self._look(type(name, (Departed,), {"__slots__": ()})(groups))


def _is_quiet() -> bool:
    """Whether nothing of torch's is under way here: the collector of cycles may come at any time."""
    return (
        torch._C._current_graph_task_id() == -1
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )

"""Where an op of a replay runs: the module stack, the user's frames, or the forward line behind a backward (worker)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import stack
from nandiag.runtime.frames.nodes import Maker, Nodes
from nandiag.runtime.frames.scripted import begins_node, scripted
from nandiag.runtime.names import class_name, is_library, is_wrapper, node_name
from nandiag.runtime.tape.state import under_autocast

_MOST_FRAMES = 8


class Spots:
    """Follows what is called; ``names`` has the FQN of each module by its id.

    ``base`` is the place of the call that is run again, ``autocast`` whether a module was called under it: a model may
    ask for it in its own code.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.base = Spot(None, None, (), "forward", 0)
        self.autocast = False
        self._nodes: Nodes[Spot] = Nodes()
        self._modules: list[tuple[nn.Module, str | None]] = []
        self._task = torch._C._current_graph_task_id()  # of the backward in which it was made, if in any

    def call(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run a module's call with the module on the stack."""
        if is_wrapper(module):
            return original(module, *args, **kwargs)
        self.autocast = self.autocast or under_autocast()  # an op's own dispatch does not tell
        self._modules.append((module, self.names.get(id(module))))
        try:
            return original(module, *args, **kwargs)
        finally:
            self._modules.pop()

    @property
    def inside(self) -> tuple[nn.Module | None, str | None]:
        """The module whose call is under way, and its FQN."""
        return self._modules[-1] if self._modules else (None, None)

    def of(self, name: str) -> Spot:
        """Return where the caller's op ``name`` is run, in the forward or in a backward."""
        within = torch._C._current_graph_task_id() != self._task
        node: Any = torch._C._current_autograd_node() if within else None
        frames, in_engine = stack(sys._getframe(1), _MOST_FRAMES)
        if node is not None and not (in_engine and frames):
            return self._behind(node, name)
        inner = scripted(name) or ()
        spot = self._here(node, (*inner, *frames, *self.base.frames))
        made = (replace(spot, frames=spot.frames[len(inner) :]), None) if begins_node(name) else (spot, name)
        self._nodes.begun(Maker(*made))
        return spot

    def _behind(self, node: Any, name: str) -> Spot:
        """Return the place of the forward op that made ``node``, which runs torch's own backward."""
        spot, forward_op, _ = self._nodes.maker(node) or (self.base, None, False)
        if torch.is_grad_enabled():  # its own gradient may be asked for: it has the same line of the script
            self._nodes.begun(Maker(replace(spot, twice=True), name))
        return replace(
            spot, phase="backward", node=node_name(node), forward_op=forward_op, micro_step=self.base.micro_step
        )

    def _here(self, node: Any, frames: tuple[Any, ...]) -> Spot:
        """Return the place of the user's own ``frames``, in the forward or in the Python of a backward's ``node``."""
        module, fqn = self.inside
        return replace(
            self.base,
            module=fqn,
            module_class=None if module is None else class_name(module),
            frames=frames,
            library=module is not None and is_library(type(module)),
            phase="backward" if node is not None else self.base.phase,
            node=node_name(node) if node is not None else None,
            recompute=node is not None and module is not None,
            dual=forward_ad._current_level >= 0,
        )

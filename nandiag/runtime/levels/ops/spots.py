"""Where each op runs that is looked at as it runs: a backward is told by its forward's place, noted with the node.

Nothing here holds on to a module: a node is known for longer than its module may be there (worker).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, Place, places
from nandiag.runtime.frames.nodes import Maker, Nodes
from nandiag.runtime.frames.scripted import begins_node, scripted
from nandiag.runtime.levels.naming import Names
from nandiag.runtime.memory.there import key_of
from nandiag.runtime.names import class_name, is_library, is_wrapper, node_name
from nandiag.runtime.replay.trace.spots import Spots

_FRAMES = 8
_MOST_NODES = 1 << 17

Inside = tuple[weakref.ref[nn.Module] | None, str]


class LiveSpots(Spots):
    """Follows what is called; ``in_model``: the root module under way has parameters, else it is a part of the loss."""

    def __init__(self) -> None:
        super().__init__({})
        self.in_model = False
        self.begins()
        self._fqn = Names()
        self._called: list[nn.Module] = []
        self._made: Nodes[tuple[list[Place], Inside]] = Nodes()
        self._newest = -1, 0

    def begins(self) -> None:
        """A step begins."""
        self.base = Spot(None, None, (), "", 0)

    def forget(self) -> None:
        """Keep what may still be asked for of the nodes."""
        self._made.forget(_MOST_NODES)

    def enters(self, module: nn.Module) -> bool:
        """Put a module that is called on the stack; returns False for one whose parts alone count."""
        if is_wrapper(module):
            return False
        self._called.append(module)
        return True

    def left(self) -> None:
        """The module entered last has returned or raised."""
        self._called.pop()

    @property
    def depth(self) -> int:
        """How many module calls are under way."""
        return len(self._called)

    def note(self, func: Any) -> None:
        """Note the place of an op that made an autograd node: the ops of its backward are told by that."""
        key = self._made.newest()
        if key != self._newest:
            self._newest = key
            node: Any = torch._C._current_autograd_node()
            if node is None:
                own = None if begins_node(str(func)) else str(func)
                self._made.add(key, Maker((places(sys._getframe(2), _FRAMES)[0], self._inside()), own))
            elif (made := self._made.maker(node)) is not None:  # its own gradient is asked for
                self._made.add(key, Maker(made.place, str(func), twice=True))

    def of(self, name: str) -> Spot:
        """Return where the caller's op ``name`` runs, in the forward or in a backward."""
        node: Any = torch._C._current_autograd_node()
        found, in_engine = places(sys._getframe(2), _FRAMES)
        if node is None or (in_engine and found):
            spot, again = self._at([*(scripted(name) or ()), *found], self._inside()), bool(self._called)
            return spot if node is None else replace(spot, phase="backward", node=node_name(node), recompute=again)
        made = self._made.maker(node)
        if made is None:
            return replace(self.base, phase="backward", node=node_name(node))
        spot = self._at(*made.place)
        return replace(spot, phase="backward", node=node_name(node), forward_op=made.op, twice=made.twice)

    def own_of(self, tensor: Tensor) -> str | None:
        """Return the FQN of ``tensor`` where it is a parameter of the module under way."""
        if not self._called:
            return None
        key, module = key_of(tensor), self._called[-1]
        own = next((name for name, one in module._parameters.items() if one is not None and key_of(one) == key), None)
        return own and ".".join(part for part in (self._fqn.of(module), own) if part)

    def _inside(self) -> Inside:
        return (weakref.ref(self._called[-1]), class_name(self._called[-1])) if self._called else (None, "")

    def _at(self, found: Iterable[Place], inside: Inside) -> Spot:
        module = None if inside[0] is None else inside[0]()
        known = tuple(map(Frame._make, found))
        if module is None:
            return replace(self.base, frames=known)
        return replace(
            self.base, module=self._fqn.of(module), module_class=inside[1], frames=known,
            library=is_library(type(module)), phase=self.base.phase or ("forward" if self.in_model else ""),
        )  # fmt: skip

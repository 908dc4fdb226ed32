"""Parts that join a module which is known already: a layer that is grown in, a buffer that comes late (worker).

Asked where torch registers them, and nowhere else: nothing runs per call for it.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torch import nn
from torch.nn.modules import module as registry

from nandiag.runtime.guard import guarded


class Follower(Protocol):
    """Who has learnt something of a module and all that is below it."""

    @property
    def module(self) -> weakref.ref[nn.Module]:
        """The module."""

    def grows(self) -> None:
        """Something has joined it, or what is below it."""


# A script that makes models time and again leaves this many parts behind before they are looked through.
_MOST = 1 << 14


class Growth:
    """Tells its followers; keeps none of them alive, nor a module."""

    def __init__(self) -> None:
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self._parts: dict[int, weakref.ref[nn.Module]] = {}
        self._listens = False

    def follow(self, follower: Follower) -> None:
        """Have it told from now on of all that joins what is below its module now."""
        self.followers.add(follower)
        if len(self._parts) > _MOST:
            self._parts = {key: one for key, one in self._parts.items() if one() is not None}
        root = follower.module()
        for one in () if root is None else root.modules():
            self._parts[id(one)] = weakref.ref(one)
        if not self._listens:
            self._listens = True
            registry.register_module_module_registration_hook(self._joins)
            registry.register_module_buffer_registration_hook(self._joins)

    @guarded("tape")
    def _joins(self, parent: nn.Module, name: str, part: Any) -> None:
        """Torch is about to register ``part``, a module or a buffer; what takes another's place is no growth."""
        known = self._parts.get(id(parent))
        if known is None or known() is not parent or part is None:
            return
        names: Any = parent._modules if isinstance(part, nn.Module) else parent._buffers
        if name in names and names[name] is not None:
            return
        for one in list(self.followers):
            root = one.module()
            if root is not None and any(held is parent for held in root.modules()):
                one.grows()


GROWTH = Growth()

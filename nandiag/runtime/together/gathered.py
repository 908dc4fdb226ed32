"""Weights that a graph knows only as FSDP2 gathers them for it: what the rank itself holds, and trains, is a part.

Only for scripts without an optimizer, whose graphs alone tell what they train.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor

from nandiag.runtime.memory.weakly import Staying
from nandiag.runtime.names import find_roots
from nandiag.runtime.replay.unfinished import groups_of

_HOME = "torch.distributed.fsdp"
# To find them all live objects are walked; a loop that makes new leaves in each step is not to pay for that.
_MOST_WALKS = 8
_Ref = Callable[[], Tensor | None]


class Gathered:
    """The rank's own part of each gathered weight."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[_Ref, _Ref]] = {}
        self._walks = 0

    def parts(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return ``leaves`` with this rank's part in the place of each that FSDP2 has gathered."""
        if _HOME not in sys.modules:
            return leaves
        if self._walks < _MOST_WALKS and any(self._part(one) is None for one in leaves):
            self._walks += 1
            self._parts.update(_found())
        return [part if (part := self._part(one)) is not None else one for one in leaves]

    def _part(self, leaf: Tensor) -> Tensor | None:
        whole, part = self._parts.get(id(leaf), (None, None))
        return part() if whole is not None and part is not None and whole() is leaf else None


def _found() -> dict[int, tuple[_Ref, _Ref]]:
    pairs = [
        (one._unsharded_param, one.sharded_param)
        for group in groups_of(find_roots())
        for one in group.fsdp_params
        if hasattr(one, "_unsharded_param")
    ]
    return {id(whole): (Staying(whole), Staying(part)) for whole, part in pairs}

"""Numbers that are not finite and that the script read off tensors before its first step, with what made them (worker).

Such a number may be the rate of each update, or a weight in each loss: no step makes it, and Python keeps no trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.births.known import OP, Birth
from nandiag.runtime.births.told import tell

_MOST = 8


class Read:
    """The first such numbers; ``birth_of`` says whence the bad values of a tensor come."""

    def __init__(self, birth_of: Callable[[Tensor], Birth | None]) -> None:
        self._birth_of = birth_of
        self._known: list[tuple[float, Looked | None]] = []

    def note(self, number: float, args: tuple[Any, ...]) -> None:
        """The script read ``number`` by a call with ``args``; must run without modes that see what it does itself."""
        if math.isfinite(number) or len(self._known) == _MOST or not (args and isinstance(args[0], Tensor)):
            return
        birth = self._birth_of(args[0])
        sure = birth is not None and birth.how == OP and not birth.facts.keys() & {"unsure", "through"}
        self._known.append((number, tell(args[0], None, birth, 0) if sure and birth is not None else None))

    def __bool__(self) -> bool:
        """Whether any was read."""
        return bool(self._known)

    def of(self, number: float) -> Looked | None:
        """Return how such a number as ``number`` was made; None where that is not known of all that were read."""
        found = [looked for one, looked in self._known if alike(one, number)]
        first = found[0] if found else None
        sites = {None if looked is None else looked.site for looked in found}
        return first if first is not None and len(sites) == 1 else None


def alike(one: float, other: float) -> bool:
    """Whether both are NaN, or both infinite."""
    return math.isnan(one) == math.isnan(other)

"""Numbers that are not finite and that the script read off tensors in the past, with what made them (worker).

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
from nandiag.runtime.tape.entry import Entry

_MOST = 8
# How often a step's own calls are run again for that, though it did no harm so far: metrics may be NaN for ever.
_MOST_LOOKS = 3


class Read:
    """The first such numbers; ``birth_of`` says whence the bad values of a tensor come."""

    def __init__(self, birth_of: Callable[[Tensor], Birth | None]) -> None:
        self._birth_of = birth_of
        self._known: list[tuple[float, Looked | None]] = []
        self._lines: set[object] = set()
        self._walks: set[object] = set()
        self._more = False
        self._looks = _MOST_LOOKS

    def note(self, number: float, args: tuple[Any, ...]) -> None:
        """The script read ``number`` by a call with ``args``; must run without modes that see what it does itself."""
        if math.isfinite(number) or len(self._known) == _MOST or not (args and isinstance(args[0], Tensor)):
            return
        birth = self._birth_of(args[0])
        sure = birth is not None and birth.how == OP and not birth.facts.keys() & {"unsure", "through"}
        self._known.append((number, tell(args[0], None, birth, 0) if sure and birth is not None else None))

    def in_step(self, number: float, maker: Entry, look: Callable[[], Looked | None]) -> None:
        """The script read ``number``, which ``maker`` made, in a step that ends now; ``look`` looks at how it did.

        It does so once for a line, and not if several lines have made such numbers before: then none can be named.
        """
        walk = math.isnan(number), *[(id(code), at) for code, at in maker.trail]
        if self._more or walk in self._walks:
            return  # each step comes by here, where a metric is NaN for ever
        self._walks.add(walk)
        line = math.isnan(number), tuple(maker.places[:1])
        if line in self._lines:
            return
        self._more = max(len(self._known), len(self._walks) // _MOST) >= _MOST
        if self._more:
            return
        self._lines.add(line)
        known = any(alike(one, number) for one, _ in self._known)
        made = look() if not known and self._looks > 0 else None
        self._looks -= not known
        sure = made is not None and (made.outcome, made.source) == ("found", "op")
        self._known.append((number, made if sure else None))

    def __bool__(self) -> bool:
        """Whether any was read."""
        return bool(self._known)

    def of(self, number: float) -> Looked | None:
        """Return how such a number as ``number`` was made; None where that is not known of all that were read."""
        found = [] if self._more else [looked for one, looked in self._known if alike(one, number)]
        first = found[0] if found else None
        sites = {None if looked is None else looked.site for looked in found}
        return first if first is not None and len(sites) == 1 else None


def alike(one: float, other: float) -> bool:
    """Whether both are NaN, or both infinite."""
    return math.isnan(one) == math.isnan(other)

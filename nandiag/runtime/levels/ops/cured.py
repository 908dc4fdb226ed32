"""Which bad values were made finite again, and which were read as numbers that may go into an op later (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from nandiag.runtime.evidence.op import Op
from nandiag.runtime.evidence.walk import ancestors
from nandiag.runtime.levels.ops.watched import Watched
from nandiag.runtime.memory.there import key_of


def cure(writers: Iterable[Op | None]) -> None:
    """What these wrote was made finite again (by a bound, say), and so was what it descends from."""
    for one in ancestors([one for one in writers if one is not None]):
        if isinstance(one, Watched):
            one.cured = True


def read_off(writers: Mapping[int, Op | None], tensor: Tensor) -> Watched | None:
    """Mark of the ``writers`` the one that the script reads a bad number of; returns it where it was seen."""
    writer = writers.get(key_of(tensor))
    if not isinstance(writer, Watched):
        return None
    writer.read = True
    return writer

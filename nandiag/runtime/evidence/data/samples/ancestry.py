"""Of which batches what an op of a replay is given was made (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nandiag.runtime.guard import sparing

if TYPE_CHECKING:
    from nandiag.runtime.evidence.op import Op
    from nandiag.runtime.tape.batches import Batch, Batches

_NONE: frozenset[int] = frozenset()


@sparing
def _places(batches: Sequence[Batch], memory: Iterable[int]) -> dict[int, frozenset[int]]:
    """Return which of the batches lie in which ``memory``, by their places."""
    lying = {key: frozenset(place for place, one in enumerate(batches) if one.name(key) is not None) for key in memory}
    return {key: places for key, places in lying.items() if places}


class Ancestry:
    """Hands on, from memory to memory, the places of the batches there; what no batch went into has none."""

    def __init__(self, batches: Batches | None = None, memory: Iterable[int] = ()) -> None:
        self._batches: tuple[Batch, ...] = tuple(batches.newest) if batches is not None else ()
        self._of: dict[int, frozenset[int]] = _places(self._batches, memory) if self._batches else {}

    def ran(self, op: Op, given: Sequence[tuple[int, Any]], made: Sequence[tuple[int, Any]]) -> None:
        """``op`` was given what lies in some memory, and made what lies in other."""
        if not self._of:
            return
        op.made_of = _NONE.union(*(self._of[key] for key, _ in given if key in self._of))
        for key, _ in made:
            self._of[key] = op.made_of

    def batch_of(self, op: Op) -> Batch | None:
        """Return the one batch that all was made of which ``op`` was given; ``None`` of several, or of none."""
        return self._batches[next(iter(op.made_of))] if len(op.made_of) == 1 else None

    def others_of(self, batch: Batch) -> list[Batch]:
        """Return the other batches of the same dataset."""
        return [one for one in self._batches if one is not batch and one.dataset is batch.dataset]

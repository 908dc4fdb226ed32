"""Which samples of a dataset the rows are at which an op broke, though what came of them was finite (worker)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.utils.data import default_collate

from nandiag.runtime.evidence.data.samples.ancestry import Ancestry
from nandiag.runtime.evidence.data.samples.refetch import beneath, index_at
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.guard import sparing
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.tape.batches import Batch

# Of more rows it is none of the samples that is to blame.
_MOST, _FEWEST_OF = 3, 4


@sparing
def samples_of(op: Op, ancestry: Ancestry) -> dict[str, object]:
    """Return the rows at which ``op`` broke in a forward, and of which samples these are, by index in their dataset.

    Where all that it was given was made of one batch, or of what no batch went into, and that batch has as many rows,
    in the order asked for. Whether rows of what the op made are those of the batch is not known. Empty where it broke
    at many.
    """
    batch = ancestry.batch_of(op)
    if batch is None or op.spot.node is not None or not op.results or not all_there(op.results[:1]):
        return {}
    rows = _bad_rows(op.results[0])
    if not rows or not _has_as_many(batch, len(op.results[0])):
        return {}
    shown = [beneath(batch.dataset, index_at(batch, row)) for row in rows]
    items = [index for _, index in shown]
    if len({id(inner) for inner, _ in shown}) != 1 or not all(type(index) in (int, str) for index in items):
        return {}
    return {"rows": rows, "rows_of": type(shown[0][0]).__name__, "row_items": items}


@sparing
def short_batch(op: Op, ancestry: Ancestry) -> dict[str, object]:
    """Return how many samples the one batch has that ``op`` was given, where others of its dataset have more."""
    batch = ancestry.batch_of(op)
    if batch is None or batch.dataset is None or not isinstance(batch.indices, Sequence):
        return {}
    others = [len(one.indices) for one in ancestry.others_of(batch) if isinstance(one.indices, Sequence)]
    own, most = len(batch.indices), max(others, default=0)
    return {"short_batch": [own, most]} if own < most else {}


def _bad_rows(made: Tensor) -> list[int]:
    """Return which rows of what an op made are bad, where these are few among others."""
    if not made.dim() or len(made) < _FEWEST_OF or not made.is_floating_point():
        return []
    bad = (~made.detach().isfinite()).flatten(1).any(1) if made.dim() > 1 else ~made.detach().isfinite()
    found: list[int] = bad.nonzero().flatten().tolist()
    return found if len(found) <= _MOST else []


def _has_as_many(batch: Batch, rows: int) -> bool:
    """Whether the batch is of so many samples of a map; the script's own ``collate_fn`` may sort them."""
    if batch.dataset is None or not batch.mapped or batch.collate is not default_collate:
        return False
    return isinstance(batch.indices, Sequence) and len(batch.indices) == rows

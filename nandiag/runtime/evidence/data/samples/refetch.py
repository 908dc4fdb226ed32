"""A bad batch is fetched from its dataset once more, under the tracer, to find the line in its code (worker)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from torch import Tensor
from torch.utils.data import Subset

from nandiag.events import Looked
from nandiag.runtime.evidence.data.numeric import Complaint, Hearing
from nandiag.runtime.evidence.data.samples.stream import ask_stream
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.evidence.walk import is_brought, origin
from nandiag.runtime.frames import BOUNDARIES
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.numeric.made import MADE, Noted
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.tape.batches import Batch
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.state import generators

# Of more than these each would be a name too many.
_MOST = 3


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a bad sample came from: the dataset's class, its index there, and the op that made it bad, if any.

    ``numpy`` is what numpy complained of instead, and where; ``made`` what it had when the sample was made, where it
    did not come bad again. ``streamed`` tells it of a dataset that is a stream. ``held``: the dataset's own memory is
    bad there. ``rows`` is how many samples of the batch are bad, ``bad`` the places and indices of a few where all are
    known. ``together``: numpy complained as they were put
    together.
    """

    dataset: str
    index: int | str | None
    op: Op | None
    numpy: Complaint | None = None
    streamed: Looked | None = None
    made: Noted | None = None
    held: bool = False
    rows: int = 0
    bad: tuple[tuple[int, int | str], ...] = ()
    together: bool = False

    @property
    def came_bad(self) -> bool:
        """Whether the dataset is known to have given it bad."""
        return self.op is not None or self.numpy is not None or self.held

    @property
    def facts(self) -> dict[str, object]:
        """What is told of the sample, wherever it was made."""
        held = {**({"held": True} if self.held else {}), **({"together": True} if self.together else {})}
        few = {"bad_samples": [list(one) for one in self.bad]} if len(self.bad) > 1 else {}
        return {"dataset": self.dataset, "dataset_index": self.index, "bad_rows": self.rows, **few, **held}


def fetch_again(batch: Batch, bad: Tensor, overwritten: Overwritten | None, *, written: bool = False) -> Fetched:
    """Name the sample of ``bad``, a tensor of the batch, and fetch the batch again where the dataset is a map.

    What the dataset writes over meanwhile is noted in ``overwritten``. ``written``: the script has written into the
    batch since, so that only what comes bad again is known to have come so.
    """
    positions = _positions(bad)
    index = index_at(batch, positions[0] if positions else None)
    inner, shown = beneath(batch.dataset, index)
    name = type(inner).__name__
    if batch.indices is None:
        return Fetched(name, None, None)
    if not batch.mapped:
        return Fetched(name, None, None, streamed=ask_stream(batch, bad))
    hearing, states = Hearing(), generators(full=True)
    try:
        with hearing.listening():
            op, again, rows = _trace(batch, hearing, overwritten)
    finally:
        states.put_back()
    if written:
        again, positions = bool(rows), sorted(rows)
        inner, shown = beneath(batch.dataset, index := index_at(batch, next(iter(positions), None)))
    brought = op is None or is_brought(op)
    if not brought and positions and min(rows, default=positions[0]) < positions[0]:
        # The first op to break made a sample that is bad elsewhere, in its target.
        inner, shown = beneath(batch.dataset, index := index_at(batch, min(rows)))
    others = [index_at(batch, place) for place in sorted({*positions, *rows} - set(positions[:1]))]
    nan = not bad.isinf().any()
    numpy = hearing.place(index, others, nan=nan) if brought and again and index is not None else None
    made = MADE.place(batch.indices, index, others) if op is None and numpy is None and index is not None else None
    held = brought and again and numpy is None and _holds(inner, shown)
    if numpy is not None and numpy.sample is not None:
        shown = beneath(batch.dataset, numpy.sample)[1]
    shown = shown if isinstance(shown, int | str) else None
    together = numpy is not None and numpy.sample is None and _one_by_one(batch)
    few = _few(batch, inner, positions)
    return Fetched(name, shown, op, numpy, made=made, held=held, rows=len(positions), bad=few, together=together)


def _few(batch: Batch, dataset: Any, positions: list[int]) -> tuple[tuple[int, int | str], ...]:
    """Return where in the batch the bad samples are, and their indices; nothing where they are many."""
    if len(positions) > _MOST:
        return ()
    found = [(place, *beneath(batch.dataset, index_at(batch, place))) for place in positions]
    known = all(inner is dataset and isinstance(index, int | str) for _, inner, index in found)
    return tuple((place, index) for place, _, index in found) if known else ()


def _one_by_one(batch: Batch) -> bool:
    """Whether the dataset is asked for one sample at a time: what runs besides is no code of its own."""
    return batch.collated and not hasattr(batch.dataset, "__getitems__")


def beneath(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the script's own dataset beneath a part of one (``random_split``), and the index there."""
    while isinstance(dataset, Subset) and isinstance(index, int) and 0 <= index < len(dataset.indices):
        dataset, index = dataset.dataset, dataset.indices[index]
    return dataset, int(index) if isinstance(index, Integral) else index


def _holds(dataset: Any, index: Any) -> bool:
    """Whether a tensor or an array of the dataset's own is bad at ``index``: it came so into the dataset."""
    numpy, kept = sys.modules.get("numpy"), list(getattr(dataset, "__dict__", {}).values())
    if type(index) is not int or index < 0:
        return False
    arrays = [one for one in kept if numpy is not None and type(one) is numpy.ndarray and one.dtype.kind == "f"]
    if any(
        len(one) > index and not numpy.isfinite(one[index]).all() for one in arrays if numpy is not None and one.ndim
    ):
        return True
    return any(one.dim() and len(one) > index and is_bad(one[index]) for one in tensors_in(kept))


def index_at(batch: Batch, position: int | None) -> Any:
    """Return what the dataset was asked with for the sample at ``position``, None where that is not known."""
    indices = batch.indices
    listed = isinstance(indices, list | tuple)
    return indices[position] if listed and position is not None and position < len(indices) else None


def _positions(bad: Tensor) -> list[int]:
    """Return which rows of ``bad`` are bad, the first of them first."""
    rows = bad.detach() if bad.dim() else bad.detach()[None]
    return [place for place in range(len(rows)) if is_bad(rows[place])]


def _trace(batch: Batch, hearing: Hearing, overwritten: Overwritten | None) -> tuple[Op | None, bool, set[int]]:
    """Fetch the batch; returns the op that made it bad, and whether it may be bad at all, as it was before.

    Last come its samples that are bad in anything: where a target alone is, what numpy made there was bad as well.
    """
    tracer = Tracer({}, joint=False)
    tracer.overwritten = overwritten
    tracer.spots.base = Spot(None, None, (), "data", 0)
    try:
        with tracer:
            data = _fetch(batch, tracer, hearing)
            with tracer.still():
                bad = [tensor for tensor in tensors_in(data) if is_bad(tensor)]
                rows = {place for one in bad if _is_of_all(one, batch) for place in _positions(one)}
                writers = [tracer.writer(tensor) for tensor in bad]
                found = origin([op for op in writers if op is not None])
    except (Exception, Refused):  # a dataset that cannot be asked twice: then only the sample is named
        return None, True, set()
    return found.op if found is not None and found.source == "op" else None, bool(bad), rows


def _is_of_all(tensor: Tensor, batch: Batch) -> bool:
    indices = batch.indices
    return isinstance(indices, list | tuple) and tensor.dim() > 0 and len(tensor) == len(indices)


def _fetch(batch: Batch, tracer: Tracer, hearing: Hearing) -> Any:
    with tracer.still():
        batch.states.put_back()
    if not batch.collated:
        return batch.collate(batch.dataset[batch.indices])
    many = getattr(batch.dataset, "__getitems__", None)
    samples = many(batch.indices) if many else [_sample(batch, index, hearing) for index in batch.indices]
    hearing.sample = None
    return batch.collate(samples)


def _sample(batch: Batch, index: Any, hearing: Hearing) -> Any:
    hearing.sample = index
    return batch.dataset[index]


BOUNDARIES.update((id(_fetch.__code__), id(_sample.__code__)))


def came_as(looked: Looked) -> dict[str, object]:
    """Return the sample as the script could ask for it, where the loader tells it."""
    index = looked.facts.get("dataset_index")
    return {} if index is None else {"came_as": f"{looked.facts['dataset']}[{index!r}]"}

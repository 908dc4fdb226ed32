"""A bad batch is fetched from its dataset once more, under the tracer, to find the line in its code (worker)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.frames import BOUNDARIES
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.replay.trace import Op, Spot, Tracer
from nandiag.runtime.tape.batches import Batch
from nandiag.runtime.tape.entries import tensors_in


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a bad sample came from: the dataset's class, its index there, and the op that made it bad, if any."""

    dataset: str
    index: int | str | None
    op: Op | None


def fetch_again(batch: Batch, bad: Tensor) -> Fetched:
    """Name the sample of ``bad``, a tensor of the batch, and fetch the batch again where the dataset is a map."""
    position = _position(bad)
    indices = batch.indices
    listed = isinstance(indices, list | tuple)
    index = indices[position] if listed and position is not None and position < len(indices) else None
    name = type(batch.dataset).__name__
    if not batch.mapped or indices is None:
        return Fetched(name, None, None)
    return Fetched(name, index if isinstance(index, int | str) else None, _trace(batch))


def _position(bad: Tensor) -> int | None:
    first = fact(bad).first_bad
    return first[0] if first else None


def _trace(batch: Batch) -> Op | None:
    tracer = Tracer({}, joint=False)
    tracer.spot = Spot(None, None, (), "data", 0)
    try:
        with tracer:
            data = _fetch(batch, tracer)
            with tracer.still():
                writers = [tracer.writer(tensor) for tensor in tensors_in(data) if is_bad(tensor)]
                found = origin([op for op in writers if op is not None])
    except Exception:  # a dataset that cannot be asked twice: then only the sample is named
        return None
    return found.op if found is not None and found.source == "op" else None


def _fetch(batch: Batch, tracer: Tracer) -> Any:
    with tracer.still():
        batch.states.put_back()
    if not batch.collated:
        return batch.collate(batch.dataset[batch.indices])
    many = getattr(batch.dataset, "__getitems__", None)
    samples = many(batch.indices) if many else [batch.dataset[index] for index in batch.indices]
    return batch.collate(samples)


BOUNDARIES.add(_fetch.__code__)

"""A dataset that is a stream is run through once more, in a process of its own, up to the batch that was bad (worker).

There is no other way to ask it for a sample again, and what running through it changes must not be seen. It gets the
seeds, and the place among the loader's workers, of the worker that made the batch. Only where the same bad values come
out is it believed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import worker as workers

from nandiag.events import Looked
from nandiag.events.codec import Record, decode, encode
from nandiag.runtime.evidence.data.numeric import Hearing
from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of, scalars_of, site_of
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.evidence.walk import is_brought, origin
from nandiag.runtime.frames import BOUNDARIES
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.tape.batches import Batch, Streamed
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.unwarned import unwarned

_PATIENCE = 10.0
_MOST_BYTES = 1 << 20


def ask_stream(batch: Batch, bad: Tensor) -> Looked | None:
    """Return what made ``bad``, a tensor of the batch, bad in the dataset's own code; None where that did not show."""
    streamed = batch.streamed
    if streamed is None or not hasattr(os, "fork") or torch.cuda.is_initialized():
        return None
    reading, writing = os.pipe()
    with unwarned(Warning):  # of threads: a loader forks its workers beside them too
        process = os.fork()
    if process == 0:
        _answer(writing, lambda: _look(batch, streamed, bad))
    os.close(writing)
    try:
        line = _read(reading)
    finally:
        os.close(reading)
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(process, 0)
    event = decode(line).event if line else None
    return event if isinstance(event, Looked) else None


def _read(reading: int) -> bytes:
    """Return what the other process wrote before it ended; nothing where that takes too long."""
    found, until = b"", time.monotonic() + _PATIENCE
    while len(found) < _MOST_BYTES:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        more = os.read(reading, 1 << 16) if ready else None
        if not more:
            return found if more is not None else b""
        found += more
    return b""


def _answer(writing: int, look: Callable[[], Looked | None]) -> None:
    """Write what ``look`` found and end, with nothing run that a process runs at its end."""
    try:
        RECORDER.mute = True
        for out in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), out)
        torch.set_num_threads(1)
        looked = look()
        if looked is not None:
            os.write(writing, encode(Record(0, 0.0, looked)).encode())
    finally:
        os._exit(0)


def _look(batch: Batch, streamed: Streamed, bad: Tensor) -> Looked | None:
    tracer, hearing = Tracer({}, joint=False), Hearing()
    tracer.spots.base = Spot(None, None, (), "data", 0)
    iterator = _begun(batch, streamed)
    with hearing.listening(), tracer:
        data = _batch(batch, iterator, hearing)
        with tracer.still():
            same = [one for one in tensors_in(data) if _are_same(one, bad)]
            found = origin([op for op in map(tracer.writer, same) if op is not None])
    if not same:
        return None
    if found is not None and found.source == "op" and not is_brought(found.op):
        return _of_op(found.op)
    rows = [place for place in range(len(bad)) if is_bad(bad[place])] if bad.dim() else [0]
    said = hearing.place(rows[0], rows[1:])
    if said is None:
        return None
    site = site_of(Spot(None, None, said.frames, "data", 0), None)
    return _looked(site=site, outputs=(fact(bad),), facts={"numpy": said.said})


def _of_op(op: Op) -> Looked:
    facts = {**scalars_of(op), **in_float64(op)}
    return _looked(site=site_of(op.spot, str(op.func)), inputs=inputs_of(op), outputs=outputs_of(op), facts=facts)


def _looked(**known: Any) -> Looked:
    return replace(Looked("found", "replay", 0, phase="data", source="op"), **known)


def _begun(batch: Batch, streamed: Streamed) -> Iterator[Any]:
    """Return the dataset's iterator as the worker of this batch had it before this batch."""
    dataset = batch.dataset
    if streamed.worker is not None:
        seed = streamed.base_seed + streamed.worker
        random.seed(seed)
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(workers._generate_state(streamed.base_seed, streamed.worker))
        known = {"id": streamed.worker, "num_workers": streamed.workers, "seed": seed, "dataset": dataset}
        workers._worker_info = workers.WorkerInfo(**known)
        if streamed.init is not None:
            streamed.init(streamed.worker)
    iterator: Iterator[Any] = iter(dataset)
    size = len(batch.indices) if batch.collated else 1
    for _ in itertools.islice(iterator, streamed.ordinal * size):
        pass
    return iterator


def _batch(batch: Batch, iterator: Iterator[Any], hearing: Hearing) -> Any:
    if not batch.collated:
        return batch.collate(next(iterator))
    samples = []
    for place in range(len(batch.indices)):
        hearing.sample = place
        samples += list(itertools.islice(iterator, 1))
    hearing.sample = None
    return batch.collate(samples)


def _are_same(one: Tensor, bad: Tensor) -> bool:
    """Whether both hold the same values, bad ones too."""
    alike = one.shape == bad.shape and one.dtype == bad.dtype and one.device == bad.device
    return alike and bool(torch.equal(torch.nan_to_num(one, 0.0, 1.0, -1.0), torch.nan_to_num(bad, 0.0, 1.0, -1.0)))


BOUNDARIES.update((id(_batch.__code__), id(_begun.__code__)))

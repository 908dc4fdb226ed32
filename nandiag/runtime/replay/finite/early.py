"""A step that is finite when it is run again, because what it read was still being written then (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.replay.written import VIEWS
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.packed.words import Given, Made

_NO_READS = VIEWS | {"__set__", "zero_", "fill_"}


def with_read_under_way(looked: Looked, exchanges: Iterable[Exchange], entries: list[Entry]) -> Looked:
    """Return ``looked``, a finite one, with the first call that read what a collective was not waited for."""
    found = next(_reads(exchanges, entries), None)
    if found is None:
        return looked
    exchange, entry = found
    at = site_of(Spot(None, None, exchange.frames, "collective", exchange.micro_step), None)
    facts = {**looked.facts, "under_way": exchange.name, "under_way_at": [at.file, at.line]}
    return replace(looked, site=site_of(Spot(None, None, entry.frames, "loss", entry.micro_step), None), facts=facts)


def _reads(exchanges: Iterable[Exchange], entries: list[Entry]) -> Iterator[tuple[Exchange, Entry]]:
    for exchange in exchanges:
        at = exchange.under_way
        keys = {storage(one) for ref in (at.tensors if at is not None else ()) if (one := ref()) is not None}
        for entry in entries if at is not None and keys else ():
            within = at is not None and at.begun < entry.number < at.waited
            if within and entry.kind != BACKWARD and entry.name not in _NO_READS and keys & set(_memory_of(entry)):
                yield exchange, entry


def _memory_of(entry: Entry) -> Iterator[int | None]:
    tensors: Iterator[Tensor | None] = (
        word.get() if type(word) is Given else word.tensor() if type(word) is Made else None for word in entry.words
    )
    return (storage(one) for one in tensors if one is not None)

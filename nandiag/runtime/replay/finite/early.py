"""A step that is finite when it is run again, because what it read was still being written then (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.replay.written import VIEWS
from nandiag.runtime.tape.entry import BACKWARD, Entry
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Given, Made

_NO_READS = VIEWS | {"__set__", "zero_", "fill_"}


def with_read_under_way(
    looked: Looked, exchanges: Iterable[Exchange], entries: list[Entry], trained: Iterable[Tensor] = ()
) -> Looked:
    """Return ``looked``, a finite one, with the first call that read what a collective was not waited for.

    Of those that the loss that was bad descends from, or the gradients of the ``trained`` weights: what is read for a
    plot did no harm.
    """
    reads = list(_reads(exchanges, entries))
    behind = _behind_harm(entries, trained) if reads else frozenset()
    return _told(looked, next((one for one in reads if id(one[1]) in behind), None))


def with_copy_under_way(looked: Looked, exchanges: Iterable[Exchange], copiers: list[Entry]) -> Looked:
    """Return the same where one of ``copiers``, calls that made what was bad, was made while ``exchanges`` went on.

    It is known to have come by these; what was read of them into a copy need not be on the tape any more.
    """
    within = (
        (exchange, entry)
        for exchange in exchanges
        for entry in copiers
        if (at := exchange.under_way) is not None and at.begun < entry.number < at.waited
    )
    return _told(looked, next(within, None))


def _told(looked: Looked, found: tuple[Exchange, Entry] | None) -> Looked:
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


def _behind_harm(entries: list[Entry], trained: Iterable[Tensor]) -> frozenset[int]:
    """Return what the harm descends from, by ``id``, also by way of what was written in place on the way."""
    backwards = [entry for entry in entries if entry.kind == BACKWARD]
    bad = [entry for entry in backwards if any(one is not None and is_bad(one) for one in map(_tensor, entry.words))]
    weights = [] if bad else [grown for one in trained for grown in (one, one.grad) if grown is not None]
    memory, known = {storage(one) for one in weights}, ancestors(bad or backwards)
    while True:
        ids = {id(entry) for entry in known}
        memory |= {key for entry in known for key in _memory_of(entry) if key is not None}
        writes = [one for one in entries if one.mutates and id(one) not in ids and memory & set(_written(one))]
        if not writes:
            return frozenset(ids)
        known = ancestors([*known, *writes])


def _written(entry: Entry) -> Iterator[int | None]:
    """Yield the memory that a call writes into: the first thing that it is given; ``torch._foreach_*`` takes many."""
    first = entry.args[0] if entry.args else ()
    words = first if isinstance(first, list | tuple) else (first,)
    return (storage(one) for one in map(_tensor, words) if one is not None)


def _memory_of(entry: Entry) -> Iterator[int | None]:
    return (storage(one) for one in map(_tensor, entry.words) if one is not None)


def _tensor(word: object) -> Tensor | None:
    return word.get() if type(word) is Given else word.tensor() if type(word) is Made else None

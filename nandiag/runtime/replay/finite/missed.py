"""A replay in which nothing broke: what it may have missed, and what it showed all the same (worker)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from nandiag.events import Looked, TensorFact, words
from nandiag.runtime.evidence.exchange.exchanged import with_exchange
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Op, Spot
from nandiag.runtime.evidence.seen import Evidence
from nandiag.runtime.look.finite import fact, is_bad, local
from nandiag.runtime.numeric.into.written import Writes, names_at, writes_at
from nandiag.runtime.numeric.warned import HEARD, Heard
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.finite.carrying import carriers, likely
from nandiag.runtime.replay.finite.early import with_copy_under_way, with_read_under_way
from nandiag.runtime.replay.update.moved import left_alone
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import BACKWARD
from nandiag.runtime.tape.exchange import Exchange
from nandiag.runtime.tape.packed.lasting import ANEW, UNSEEN, came_otherwise
from nandiag.runtime.tape.packed.words import Made

_STATE = frozenset({"parameter", "buffer"})
_FINITE = "run again, the step is finite on this rank"
_DROPPED = (
    "other numbers were dropped than in the step: the library's recurrent layers drop by a state of their own, which "
    "had gone on and could not be put back"
)
_OTHER_MEMORY = "weights were given other memory in the step (`p.data = ...`), and have what came of it"
_BESIDE = "other threads made gradients within the step, and what they did is not run again"
_HANDED = "gradients' memory was handed to numpy, and what it wrote there was not run again"
_NOT_AGAIN = "this line left what became a gradient, and was not run again: what it was given is gone"


def finite(case: Case, seen: Evidence, capture: Capture, *, partial: bool) -> Looked:
    """Return that the step was finite; ``partial``: what its first micro-batches did was not run again.

    But for a gradient that the script has laid there, and that no call made again: it was bad where that began; or one
    that numpy was handed, and complained of.
    """
    handed = _handed_to_numpy(case, capture)
    writers = {id(one): _writers(one, capture) for one in handed}
    by_numpy = (_by_numpy(case, one, writers[id(one)]) for one in handed)
    known = _brought(case, seen) or next((one for one in by_numpy if one is not None), None)
    if known is not None:
        return known
    doubts = [*seen.doubts(), *_not_run(case, seen, capture, partial=partial), *_handed(writers.values())]
    looked = case.nothing("finite", "; ".join([_FINITE, *doubts]))
    looked = replace(looked, facts={"complete": not doubts, "joint": case.joint, **seen.multiplied()})
    looked = with_read_under_way(looked, capture.exchanges, seen.entries, case.parameters)
    if looked.site is not None:
        return looked  # what goes round behind the backward is made of what was read
    if case.joint and handed and UNSEEN in seen.result.doubts:  # all made the exchange again: numpy wrote there
        return replace(looked, facts={**looked.facts, "by_others": True})
    own = _own_exchanges(seen, capture)
    own = likely(own, carriers(own, seen.entries, case.parameters, capture.tape.maker)) if own else own
    return with_exchange(looked, seen.result.largest_gradient, seen.roots, own)


def _not_run(case: Case, seen: Evidence, capture: Capture, *, partial: bool) -> Iterator[str]:
    """Yield what of the step was not run again, or not as it was."""
    if partial:
        yield "earlier micro-batches of the step were too large to keep"
    if capture.window.beside_in >= case.step:
        yield _BESIDE
    if left_alone(seen.entries, capture.window.moved.in_step(case.step)):
        yield _OTHER_MEMORY
    if came_otherwise(seen.entries, seen.result.outputs, case.instead):
        yield ANEW
    if seen.tracer.overwritten is not None and seen.tracer.overwritten.drew:
        yield _DROPPED


def _handed_to_numpy(case: Case, capture: Capture) -> list[Tensor]:
    """Return the bad gradients whose memory the script handed to numpy."""
    handed = {storage(one) for known in capture.window.exposed if (one := known()) is not None} - {None}
    return [one for one in case.gradients if storage(one) in handed and is_bad(one)]


def _writers(handed: Tensor, capture: Capture) -> list[Writes | None]:
    """Return the statement that handed a gradient's memory to numpy each time, None for one that need not write."""
    exposed = ((one.trail, whole) for one in capture.window.exposed if (whole := one()) is not None)
    return [writes_at(trail) for trail, whole in exposed if storage(whole) == storage(handed)]


def _handed(writers: Iterable[list[Writes | None]]) -> Iterator[str]:
    """Yield that numpy was handed gradients' memory, with the line that writes there where that is known to be one."""
    known = {one for some in writers for one in some}
    lines = {words.place((one.file, one.line)) for one in known if one is not None}
    if known:
        yield f"{_HANDED} ({lines.pop()} writes into it)" if len(lines) == 1 else _HANDED


def _by_numpy(case: Case, handed: Tensor, writers: list[Writes | None]) -> Looked | None:
    """Return the line that numpy complained of in this step, where it wrote that into the memory of a bad gradient."""
    facts: dict[str, object] = {"complete": False, "joint": case.joint}
    came = replace(case.nothing("found", _FINITE), source="outside", inputs=(fact(handed),), facts=facts)
    heard = _heard_into(came, handed, case.step, writers)
    return replace(heard, phase="optimizer") if heard.facts.get("heard") is True else None


def _by_numpy_too(looked: Looked, op: Op, step: int) -> Looked:
    """Return what is told of a weight or buffer that came bad to ``op``, or the line that numpy laid that there by."""
    for one in op.outside:
        came = replace(looked, source="outside", facts={})
        heard = _heard_into(came, one.tensor, step - 1, [])  # a weight is used a step after it was written
        if heard.facts.get("heard") is True:
            return replace(heard, phase=op.spot.phase, facts={**looked.facts, **heard.facts})
    return looked


def _heard_into(came: Looked, tensor: Tensor, since: int, writers: Sequence[Writes | None]) -> Looked:
    laid = functools.partial(_may_have_written, tensor=tensor, signs=fact(tensor), since=since, writers=writers)
    heard = with_heard(came, laid)
    if heard.facts.get("heard") is True:
        for one in filter(laid, HEARD.all()):
            one.blamed = True
    return heard


def _may_have_written(
    heard: Heard, tensor: Tensor, signs: TensorFact, since: int, writers: Sequence[Writes | None]
) -> bool:
    """Whether numpy laid what it complained of into ``tensor``, and what lies there may be that.

    One that is only read, for a metric, was made bad by somebody else.
    """
    memory = local(tensor)
    storage_of = (tensor if memory is None else memory).untyped_storage()
    laid = [one for one in heard.laid if one.meets(storage_of.data_ptr(), storage_of.data_ptr() + storage_of.nbytes())]
    lowest = heard.said.startswith("divide by zero encountered in log")  # that makes no other infinity
    fitting = [one for one in laid if not (lowest and one.as_it_is) or signs.neginf or signs.nan]
    if not all(one.anywhere for one in fitting):
        return True
    others = all(one.lost for one in fitting) and _is_written_by_others(heard, writers)
    return bool(fitting) and not others and not _was_harmless(heard, since) and _is_of_its_kind(heard, signs)


def _was_harmless(heard: Heard, since: int) -> bool:
    """Whether numpy complained of it in steps before ``since``, and nothing came of that."""
    return heard.first < since and not heard.blamed


def _is_written_by_others(heard: Heard, writers: Sequence[Writes | None]) -> bool:
    """Whether all statements that were handed the memory are known, and what they write there has other names."""
    own = names_at(heard.places)
    return bool(writers) and all(one is not None and one.names.isdisjoint(own) for one in writers)


def _is_of_its_kind(heard: Heard, signs: TensorFact) -> bool:
    """Whether an infinity lies there where one was made; of one that became NaN in numpy it had complained, too."""
    if not heard.said.startswith(("divide by zero", "overflow")) or signs.posinf or signs.neginf:
        return True
    return any(one.said.startswith("invalid") and one.step == heard.step for one in HEARD.all())


def unless_too_early(case: Case, looked: Looked, op: Op, seen: Evidence, capture: Capture) -> Looked:
    """Return ``looked``, or the line that read what came bad from another rank before it had come; ``op`` took it in.

    Of a weight or a buffer, the line by which numpy was heard to lay that there.

    Only where by now all that was to come is there, and finite: what the other rank gave is not what was read.
    """
    if looked.source in _STATE and "birth" not in looked.facts:
        return _by_numpy_too(looked, op, case.step)
    through = [one for one in capture.exchanges if one.under_way is not None and one.under_way.is_finite()]
    if looked.source != "received" or not through:
        return looked
    base = replace(looked, source="outside", phase="loss", site=None, facts={"complete": True, "joint": case.joint})
    early = with_read_under_way(base, through, seen.entries, case.parameters)
    if early.site is None:
        made = (capture.tape.maker(one.tensor) for one in op.outside)
        by = looked.facts.get("handed")
        came = [one for one in through if one.message is not None and one.message.facts()["handed"] == by]
        early = with_copy_under_way(base, came, [known[0] for known in made if known is not None])
    return looked if early.site is None else early


def _own_exchanges(seen: Evidence, capture: Capture) -> list[Exchange]:
    """Return those that the script called by itself behind the last backward."""
    backwards = sum(entry.kind == BACKWARD for entry in seen.entries)
    return [one for one in capture.exchanges if one.places and one.micro_step >= backwards]


def behind_exchange(case: Case, looked: Looked, seen: Evidence, capture: Capture) -> Looked:
    """Return the last write into a bad gradient with the script's own call that exchanged gradients, if one did."""
    own = _own_exchanges(seen, capture)
    found = carriers(own, seen.entries, case.parameters, capture.tape.maker) if own else []
    if not found:
        return looked
    site = site_of(Spot(None, None, found[-1].frames, "collective", found[-1].micro_step), None)
    return replace(looked, facts={**looked.facts, "exchanged_by": [found[-1].name, site.file, site.line]})


def _brought(case: Case, seen: Evidence) -> Looked | None:
    """Return which call left a gradient bad that was taken as it was; None where no such one is bad."""
    given = [*seen.result.gradients, *(one.grad for one in case.parameters if one.grad is not None)]
    bad = {storage(one): one for one in given if is_bad(one) and seen.tracer.writer(one) is None}
    words = [(entry, word) for entry in seen.entries for word in entry.words if type(word) is Made and word.taken]
    found = next(((*pair, one) for pair in words if (one := bad.get(_memory(pair[1]))) is not None), None)
    if found is None:
        return None
    entry, word, tensor = found
    site = site_of(Spot(None, None, word.entry.frames, "optimizer", entry.micro_step), word.entry.name)
    return Looked(
        outcome="found", method="tape", step=case.step, micro_step=entry.micro_step, phase="optimizer",
        source="outside", site=site, outputs=(fact(tensor),), facts={"complete": False}, reason=_NOT_AGAIN,
    )  # fmt: skip


def _memory(word: Made) -> int | None:
    tensor = word.tensor()
    return None if tensor is None else storage(tensor)

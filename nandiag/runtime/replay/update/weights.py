"""Which weights a harmful step began bad, and what wrote into them last (worker)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

from torch import Tensor, isfinite, strided
from torch.optim import Optimizer

from nandiag.events import Looked
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.look.finite import fact, is_bad, is_blank
from nandiag.runtime.memory.laid import is_finite, laid_by
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.replay.case import WITHIN, Case
from nandiag.runtime.replay.ready import began_bad
from nandiag.runtime.replay.update.again import BY_HAND, GONE, STOOD_IN, last_write
from nandiag.runtime.replay.written import written_by
from nandiag.runtime.tape.entry import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.packed.words import Made

_MOST, _TWO = 4, 2
Maker: TypeAlias = Callable[[Tensor], tuple[Entry, int] | None]
MIDWAY = "what was written into the weights between two backward calls of the step was bad"
_MADE_MIDWAY = f"{MIDWAY}; this is where the script made it"


def of_given(
    case: Case, looked: Looked, moved: Iterable[Entry], entries: list[Entry], examine: Callable[[Case], Looked | None]
) -> Looked:
    """Return ``looked``, or what made the value that went into the bad weights, where the write says nothing of it.

    That is so of ``p.data = value`` (``moved``: these, with the values that are there), and of what was written between
    two backward calls: of that the loop's own calls alone are made again, for the models ran on other weights.
    """
    if case.joint or case.handed:
        return looked
    asked: list[Case] = []
    if looked.facts.get("written_in_place") == ".data":
        value = _handed_over({storage(one) for one in case.suspects if is_bad(one)}, moved)
        handed = replace(case, unfinished=True, handed=True)
        asked = [handed, replace(handed, within=True)]  # what it was made of may lie in that memory by now
    elif looked.reason == _MADE_MIDWAY:
        _, value = _written_midway([one for one in case.parameters if is_bad(one)], entries) or (None, None)
        asked = [replace(case, unfinished=True, handed=True, apart=True)]
    for one in asked:
        made = None if value is None else examine(replace(one, spoken=(value,)))
        if made is not None and (made.outcome, made.source) == ("found", "op"):
            return replace(made, phase="optimizer")
    return looked


def _handed_over(bad: set[object], moved: Iterable[Entry]) -> Tensor | None:
    """Return the value that came last to be the memory of a bad weight."""
    values = [entry.args[1].get() for entry in moved if len(entry.args) > 1]
    return next((one for one in reversed(values) if storage(one) in bad), None)


def before_update(bad: list[Tensor], step: int, writes: list[Entry]) -> Looked | None:
    """Return the last write into weights that an update left bad and is finite when made again; None where none was.

    What a forward took that gave a finite loss and a gradient other than 0 was finite: only writes behind it count.
    """
    last = max((at for at, entry in enumerate(writes) if entry.kind is ROOT), default=-1)
    return last_write(bad, step, writes[last + 1 :] if all(map(_was_taken, bad)) else writes)


def _was_taken(weight: Tensor) -> bool:
    """Whether a gradient came of what is bad of a weight by now: where it is 0, as behind softplus(-inf), none did."""
    if weight.grad is None or is_bad(weight.grad):
        return False
    data, gradient = held_of(weight.detach()), held_of(weight.grad)
    if gradient.shape != data.shape or gradient.layout is not strided:
        return not is_blank(weight.grad)
    return bool(gradient[~isfinite(data)].any())


def beside_update(write: Looked, again: Looked | None) -> Looked:
    """Return the last ``write`` into weights that the update left as bad as they were, or what made what was written.

    ``again``: what running the step again has shown.
    """
    looked = write if again is None or again.method != "replay" else again
    return replace(looked, phase="optimizer", facts={**looked.facts, "beside_update": True})


# What hands values on as they are.
_AS_THEY_ARE = frozenset(
    {"__getitem__", "clone", "contiguous", "detach", "expand_as", "flatten", "reshape", "to", "unflatten", "view"}
    | {"narrow", "squeeze", "unsqueeze", "view_as", "reshape_as"}
)
_MADE_BY_HAND = f"{BY_HAND}; this made what the script wrote into the parameter last"


def of_weights(case: Case, entries: list[Entry], writes: list[Entry], looked: Looked, *, midway: bool) -> Looked:
    """Return ``looked`` with which weights the step began bad, or the last write into them where it showed nothing.

    ``writes``: the entries with what gave weights other memory. ``midway``: the entries begin in the middle of an
    optimizer's step, behind an evaluation of its closure.
    """
    if looked.outcome != "found" and case.by_hand and not looked.facts.get("complete"):
        written = last_write(list(case.suspects), case.step, writes, BY_HAND)
        looked = looked if written is None else _with_maker(case, written, writes)
    if case.behind and (looked.outcome == "finite" or (looked.outcome == "refused" and writes != entries)):
        looked = last_write(list(case.suspects), case.step, writes, GONE) or looked
    if case.behind and looked.phase == "data":
        looked = replace(looked, phase="optimizer")  # no step follows of which it would be the data
    looked = _by_step(case, looked)
    spoiled = began_bad(case, entries, midway=midway)
    spoiled = [one for one in spoiled if case.evaluated is None or not case.evaluated.holds(one[1])]
    if looked.outcome == "finite" and looked.facts.get("reconstructed") and not case.joint:
        bad = [one for one in case.parameters if is_bad(one)]
        looked = between_backwards(bad, case.step, writes) or last_write(bad, case.step, writes, STOOD_IN) or looked
    if looked.outcome == "found" and looked.source in {"outside", "parameter"} and writes != entries:
        looked = last_write([one for one in case.parameters if is_bad(one)], case.step, writes, GONE) or looked
    if not spoiled:
        return looked
    began: dict[str, object] = {"began_bad": [name for name, _ in spoiled[:_MOST]], "all_bad": len(spoiled)}
    return replace(looked, facts={**looked.facts, **began, **_filled_by(looked, spoiled)})


def _with_maker(case: Case, written: Looked, writes: list[Entry]) -> Looked:
    """Return what computed the values that were ``written`` as they are, where they were made in this update."""
    memory = {storage(one) for one in case.suspects}
    last = next((one for one, target in reversed(list(written_by(writes))) if storage(target) in memory), None)
    words = [] if last is None or last.name != "copy_" else list(last.words)
    maker = words[-1].entry if len(words) > 1 and type(words[-1]) is Made else None
    while maker is not None and maker.name in _AS_THEY_ARE:
        first = next(iter(maker.words), None)
        maker = first.entry if type(first) is Made else None
    if maker is None or written.source != "op":
        return written
    site = site_of(Spot(None, None, maker.frames, "optimizer", 0), maker.name)
    return replace(written, site=site, facts={}, reason=_MADE_BY_HAND)


def _by_step(case: Case, looked: Looked) -> Looked:
    """Return ``looked`` with the call of the optimizer's step that wrote a weight: who used that first is not at fault.

    Where the script wrote it, that line is told already.
    """
    if case.evaluated is None or WITHIN not in looked.facts or not case.evaluated.frames:
        return looked
    called = site_of(Spot(None, None, case.evaluated.frames, "optimizer", 0), None)
    used = looked.site or called
    return replace(looked, site=replace(called, module=used.module, module_class=used.module_class))


def between_backwards(bad: list[Tensor], step: int, entries: list[Entry]) -> Looked | None:
    """Return what wrote into weights behind the step's first backward and before its last one (SAM by hand).

    They were finite at the first one, and are read in the second: the first write whose operand is bad is meant, and
    what made that operand where the loop still holds it.
    """
    written = _written_midway(bad, entries)
    if written is not None:
        return _made_midway(*written, step)
    return last_write(bad, step, [entry for entry, _ in _midway(bad, entries)], MIDWAY)


def _midway(bad: list[Tensor], entries: list[Entry]) -> list[tuple[Entry, Tensor]]:
    """Return the writes into the ``bad`` weights between the first backward and the last, each with its target."""
    backwards = [at for at, entry in enumerate(entries) if entry.kind == BACKWARD]
    if len(backwards) < _TWO:
        return []
    memory = {storage(one) for one in bad}
    between = written_by(entries[backwards[0] + 1 : backwards[-1]])
    return [(entry, target) for entry, target in between if storage(target) in memory]


def _written_midway(bad: list[Tensor], entries: list[Entry]) -> tuple[Entry, Tensor] | None:
    """Return the first bad operand of those writes that is still there, with the entry that made it."""
    memory = {storage(one) for one in bad}
    for entry, _ in _midway(bad, entries):
        for word in entry.words:
            given = word.tensor() if type(word) is Made else None
            if type(word) is Made and given is not None and storage(given) not in memory and is_bad(given):
                return word.entry, given
    return None


def _made_midway(maker: Entry, made: Tensor, step: int) -> Looked:
    return Looked(
        outcome="found", method="tape", step=step, phase="optimizer", source="op",
        site=site_of(Spot(None, None, maker.frames, "optimizer", 0), maker.name), outputs=(fact(made),),
        reason=_MADE_MIDWAY,
    )  # fmt: skip


def _filled_by(looked: Looked, spoiled: list[tuple[str, Tensor]]) -> dict[str, object]:
    """Return which message had filled the memory of the weight that ``looked`` met bad, as far as that is known.

    It may have been finite: whether it was not, the rank that sent it tells.
    """
    met = {one.name for one in looked.inputs if one.bad} if looked.source == "parameter" else set()
    messages = (ARRIVALS.of(one) for name, one in spoiled if name in met)
    message = next((one for one in messages if one is not None), None)
    return {} if message is None else {"filled_by": message.facts()["handed"]}


def of_state(
    looked: Looked, optimizer: Optimizer, bad: dict[str, Tensor], tape: tuple[list[Entry], Maker], *, first: bool
) -> Looked:
    """Return ``looked`` with what the script wrote into the optimizer's state of the ``bad`` weights since its update.

    Where the update shows nothing, and that is bad by now, it is the last write into it. ``tape``: the entries, and
    what tells the call of this step that made a tensor; ``first``: the optimizer made its first update, here or since
    it was loaded.
    """
    found = _state_written(optimizer, bad, *tape)
    if looked.source == "op":
        told: dict[str, object] = {} if first else {"updated_before": True}
        told |= {"state_written": {key: _place(one[0]) for key, one in found.items()}} if found else {}
        return replace(looked, facts={**looked.facts, **told})
    spoilt = (one for one in found.values() if is_bad(one[2]) and not _lays_finite(one[0]))
    last = next(spoilt, None) if looked.outcome == "finite" else None
    if last is None:
        return looked
    writer, name, value = last
    return Looked(
        outcome="found", method="tape", step=looked.step, phase="optimizer", source="op",
        site=site_of(Spot(None, None, writer.frames, "optimizer", 0), writer.name), outputs=(fact(value, name),),
        facts={"written_in_place": writer.name}, reason=f"{_IN_STATE} {name}",
    )  # fmt: skip


def _state_written(
    optimizer: Optimizer, bad: dict[str, Tensor], entries: list[Entry], maker: Maker
) -> dict[str, tuple[Entry, str, Tensor]]:
    """Return by its key the last write into each kind of state, of the first weight it was so of: its name, and it."""
    wrote = {storage(target): entry for entry, target in written_by(entries)}
    found: dict[str, tuple[Entry, str, Tensor]] = {}
    for name, one in bad.items():
        for key, value in _state(optimizer, one):
            made = maker(value) if isinstance(value, Tensor) else None
            writer = wrote.get(storage(value)) if isinstance(value, Tensor) else None
            writer = writer or (None if made is None else made[0])
            if writer is not None:
                found.setdefault(str(key), (writer, f"{key} of {name}", value))
    return found


_IN_STATE = "the update itself is finite when made again; this is the script's last write into the optimizer's state"


def _lays_finite(entry: Entry) -> bool:
    return is_finite(laid_by(entry.name, entry.args, entry.kwargs))


def _state(optimizer: Optimizer, weight: Tensor) -> Iterable[tuple[Any, Any]]:
    known = optimizer.state.get(weight)
    return list(known.items()) if isinstance(known, dict) else ()


def _place(writer: Entry) -> list[object]:
    site = site_of(Spot(None, None, writer.frames, "optimizer", 0), writer.name)
    return [site.file, site.line, (site.source or "").strip()]

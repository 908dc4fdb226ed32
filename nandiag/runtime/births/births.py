"""What is asked when harm is found: whence a weight, or another tensor, is bad that no step made so (worker)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Looked, Note, Site
from nandiag.runtime.births.files.missing import Missing
from nandiag.runtime.births.files.saves import Saves, name_of
from nandiag.runtime.births.known import FILE, LAST, RECEIVED, UNWRITTEN, Birth, Call
from nandiag.runtime.births.parts.place import FIRST
from nandiag.runtime.births.prelude import Prelude
from nandiag.runtime.births.record import Record
from nandiag.runtime.births.threads import Threads
from nandiag.runtime.births.told import tell
from nandiag.runtime.collectives.messages import ARRIVALS
from nandiag.runtime.evidence.data.samples.refetch import beneath
from nandiag.runtime.evidence.heard import with_heard
from nandiag.runtime.evidence.labels import labels_of, storage
from nandiag.runtime.frames import places
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.weights import Held
from nandiag.runtime.memory.known.unwritten import as_filled
from nandiag.runtime.memory.later.handed_out import HandedOut, Out
from nandiag.runtime.memory.later.stored import Stored
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.batches import Batch
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.together.census import has_peers

_FRAMES = 6
_DEEPEST = 6
_MOST_NUMBERS = 64
_CUT_SHORT = (
    "The script makes so many torch calls before its first step that nandiag ceased to look at them: the line that "
    "made the weight bad may be among those that were not seen."
)


class Births:
    """The record of what was written before training, and the weights that were bad when they were first looked at."""

    def __init__(self) -> None:
        self.record = Record()
        self.prelude = Prelude(self.record)
        self.read = self.prelude.read
        self.threads = Threads()
        self.saves = Saves(self.record, self.of)
        self.missing = Missing()
        self.handed_out = HandedOut()
        self.stored: Stored | None = None
        self.known: Looked | None = None
        self._numbers = _MOST_NUMBERS
        self.unknown: tuple[int, list[Held]] = (-1, [])

    def bad_from_the_start(self, held: Sequence[Held], step: int) -> None:
        """Weights were bad when they were first looked at: whence is written down now, whatever is run again later."""
        self.unknown = (step, list(held))
        weights = [one for one in held if one.what == "parameter"]
        self.known = self.explain(weights or self._read(held) or (), step)
        if self.known is not None:
            RECORDER.emit(self.known, urgent=True)
        elif self.prelude.cut_short and any(one.what == "parameter" for one in held):
            RECORDER.emit(Note(_CUT_SHORT))

    @guarded("births")
    def _read(self, held: Sequence[Held]) -> list[Held]:
        """Return the state that was read from a file: what else fills it is the optimizer's own affair."""
        with quiet():
            births = [(one, self.record.birth_of(one.tensor)) for one in held if one.what == "optimizer_state"]
        return [one for one, birth in births if birth is not None and birth.how == FILE]

    @guarded("births")
    def is_of_bad_state(self, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor]) -> bool:
        """Whether state of one of the ``parameters`` was bad when first looked at: the update is made of that.

        What is finite behind the update was mended before it: no update makes bad state finite again.
        """
        known = {id(one.tensor) for one in self.unknown[1] if one.what == "optimizer_state"}
        states = (optimizer.state.get(one) for one in parameters) if known else ()
        values = (value for state in states if isinstance(state, dict) for value in state.values())
        with quiet():
            return any(is_bad(value) for value in values if id(value) in known)

    @guarded("births")
    def loaded(self, file: Any, content: Any, frame: Any, step: int, planner: Any = None) -> None:
        """``content`` was read from ``file``, by a call from ``frame`` in ``step``, as ``planner`` says, if given."""
        call = Call("load", places(frame, _FRAMES)[0])
        path = os.fspath(file) if isinstance(file, str | os.PathLike) else None
        with quiet():
            passed, unsure = self.missing.loaded(planner, name_of(file), call)
            filled = [(name, one) for name, one in _named(content) if storage(one) not in passed]
            for _, one in filled:
                self.handed_out.forget(one)  # what was read is what was written there, though no call was seen
                if storage(one) in unsure:
                    self.record.forget(one)
            named = [(name, one) for name, one in filled if storage(one) not in unsure]
            if self.prelude.shut:
                self.saves.loaded(file, named, call, step)
            else:
                self.record.read(named, call, path if isinstance(path, str) else None)

    @guarded("births")
    def saved(self, file: Any, content: Any, frame: Any, tape: Tape | None, step: int) -> None:
        """``content`` was saved to ``file`` from ``frame`` in ``step``, by the thread of ``tape`` if given."""
        with quiet():
            self.saves.saved(file, _named(content), Call("save", places(frame, _FRAMES)[0]), tape, step)

    @guarded("births")
    def saves_later(self, file: Any, content: Any, frame: Any, tape: Tape | None, step: int) -> None:
        """A copy of ``content``, as it is now, will be saved to ``file`` in another thread."""
        with quiet():
            self.saves.asked(file, _named(content), Call("save", places(frame, _FRAMES)[0]), tape, step)

    @guarded("births")
    def from_file(self, roots: list[nn.Module], step: int, finite: Sequence[Tensor]) -> Looked | None:
        """Return whence a weight or buffer of ``roots`` is bad that was so in a file which was loaded.

        What was ``finite`` behind the update before is none of what was loaded ahead of that.
        """
        if not self.saves.any:
            return None
        seen = set(map(id, finite))
        with quiet():
            for one in labels_of(roots, []).values():
                own = one.what in {"parameter", "buffer"} and is_bad(one.tensor)
                since = step if id(one.tensor) in seen else 0
                birth = self.saves.birth_of(one.name, one.tensor, since) if own else None
                if birth is not None:
                    looked = tell(one.tensor, Held(one.name, one.what, one.tensor), birth, step)
                    site = replace(looked.site or Site(), module=one.module, module_class=one.module_class)
                    return replace(looked, site=site)
        return None

    @guarded("births")
    def explain(self, held: Sequence[Held], step: int) -> Looked | None:
        """Return whence the weights are bad; None where nothing is known of any."""
        with quiet():
            births = [(one, self.record.birth_of(one.tensor)) for one in held]
            # A weight that was made of what another rank sent is told by that rank.
            known = [(one, birth) for one, birth in births if birth is not None and birth.how != RECEIVED]
            if not known:
                return self._loaded_later(held, step) or self._handed_out(held, step)
            one, birth = min(known, key=lambda pair: pair[1].how == LAST)
            if birth.how == UNWRITTEN and not birth.facts.get("exposed"):
                birth = replace(birth, facts={**birth.facts, **self.missing.of(one.tensor)})
            return with_heard(tell(one.tensor, one, self.saves.of_own_file(birth), step))

    def _loaded_later(self, held: Sequence[Held], step: int) -> Looked | None:
        """Return the load, when training had begun, of a weight of a new model, which is first looked at now."""
        births = ((one, self.saves.birth_of(one.name, one.tensor, 0)) for one in held) if self.saves.any else ()
        one, birth = next(((one, birth) for one, birth in births if birth is not None), (None, None))
        return None if one is None or birth is None else with_heard(tell(one.tensor, one, birth, step))

    def _handed_out(self, held: Sequence[Held], step: int) -> Looked | None:
        """Return the line of the loop that was handed the memory of a weight, a part of which nothing wrote."""
        pairs = ((one, self._out(one.tensor)) for one in held)
        one, known = next(((one, known) for one, known in pairs if known is not None), (None, None))
        return None if one is None or known is None else self._unwritten(one.tensor, one, known, step)

    def _out(self, tensor: Tensor) -> Out | None:
        """Also where a wrapper wrote all of it since, as DDP does with what rank 0 holds, and it looks untouched."""
        return self.handed_out.of(tensor) or (self.handed_out.known(tensor) if as_filled(tensor) else None)

    def _unwritten(self, tensor: Tensor, held: Held | None, known: Out, step: int) -> Looked:
        left = tell(tensor, held, Birth(UNWRITTEN, known.call, facts={"unsure": True, **self.missing.of(tensor)}), step)
        facts = {**left.facts, "handed_at_step": known.step}
        return replace(left, reason="no call was seen to write what is bad there", facts=facts)

    @guarded("births")
    def last_write(self, step: int, writes: Sequence[tuple[Entry, Tensor]]) -> Looked | None:
        """Return the last of the script's ``writes`` between steps into a weight that was bad behind them."""
        if self.unknown[0] != step:
            return None
        held = {storage(one.tensor): one for one in self.unknown[1] if one.what == "parameter"}
        into = [(entry, held[key]) for entry, target in writes if (key := storage(target)) in held]
        if not into:
            return None
        entry, one = into[-1]
        if ARRIVALS.still(one.tensor) is not None:
            return None  # a collective has written there since
        with quiet():
            return tell(one.tensor, one, Birth(LAST, Call(entry.name, entry.places)), step)

    @guarded("births")
    def of_sample(self, found: tuple[Batch, str] | None) -> Birth | None:
        """Return the birth of the bad values in a batch of which a tensor of its dataset holds the samples."""
        if found is None or not isinstance(found[0].indices, list) or not found[0].indices:
            return None
        asked = [beneath(found[0].dataset, one) for one in found[0].indices]
        for tensor in tensors_in(list(getattr(asked[0][0], "__dict__", {}).values())):
            rows = [one for _, one in asked if type(one) is int and tensor.dim() and one < len(tensor)]
            if tensor.is_floating_point() and len(rows) == len(asked) and is_bad(tensor[rows]):
                return self.of(next(tensor[row] for row in rows if is_bad(tensor[row])))
        return None

    @guarded("births")
    def of(self, tensor: Tensor, at: int | None = FIRST) -> Birth | None:
        """Return the birth of the bad values of ``tensor`` where it was seen, of its element ``at`` that byte."""
        with quiet():
            found = self.record.birth_of(tensor, at)
            if found is not None and _is_sure(found):
                return found
            births = (one.birth_of(tensor, at) for one in self.threads.records)
            found = next((birth for birth in births if birth is not None and _is_sure(birth)), None)
            return None if found is None else replace(found, facts={**found.facts, "thread": True})

    @guarded("births")
    def stored_in(self, tensors: Sequence[Tensor], step: int, *, waiting: bool = False) -> Looked | None:
        """Return how the bad values were made that were stored in the memory of one of the ``tensors``, if known.

        ``waiting``: what was stored since the last update is looked at first, and what was bad when this step began is
        among the tensors; never while a step is run again.
        """
        stored = self.stored
        if stored is None:
            return None
        if waiting:
            stored.look()
            tensors = [*tensors, *(one.tensor for one in self.unknown[1] if self.unknown[0] == step)]
        with quiet():
            found = (stored.of(one) for one in tensors if is_bad(one))
            looked = next((one for one in found if one is not None), None)
        return None if looked is None else replace(looked, step=step)

    def of_loop(
        self, tensor: Tensor, looked: Looked, op: str, held: Held | None = None, version: int | None = None
    ) -> Looked:
        """Return ``looked``, or the line of the loop that was handed this memory, a part of which nothing wrote.

        ``held``: it is a weight or a buffer, of a model that was made when training had begun; of ``version`` it was
        before it was written into to run the step again.
        """
        stored = None if self.stored is None else self.stored.of(tensor)
        if stored is not None:
            return replace(stored, step=looked.step, facts={**stored.facts, "first_used_by": op})
        known = self.handed_out.of(tensor, version)
        if known is None or (has_peers() and not as_filled(tensor)):
            return looked  # a buffer to receive into may be filled where no call of torch is seen to write
        left = self._unwritten(tensor, held, known, looked.step)
        return replace(left, facts={**left.facts, "first_used_by": op})

    def written(self, tensor: Tensor, laid: Any) -> None:
        """The loop is about to write into ``tensor``, ``laid`` as it is (None: something else).

        What is finite leaves what was bad there as it was: memory that nobody filled may be filled bit by bit.
        """
        if self.stored is not None and laid is not None:
            self.stored.written(tensor, laid)
        if not self.prelude.on:
            self.record.files.forget(tensor)
        number = type(laid) is float and math.isnan(laid)
        if self.prelude.on or (laid is not None and not number and self.record.leaves(tensor, laid)):
            return
        self.forget(tensor)
        # By a view that is gone when harm is found, as that of a shard: to_local() gives another tensor each time.
        if number and self._numbers > 0 and has_peers():
            self._numbers -= 1
            self.record.lays(tensor, Call("fill_", places(sys._getframe(1), _FRAMES)[0]))

    def forget(self, tensor: Tensor) -> None:
        """Something that is not looked at has written into ``tensor``."""
        self.record.forget(tensor)
        self.threads.forget(tensor)

    def received(self, tensor: Tensor) -> None:
        """Others write into ``tensor`` by a collective, which no call of this rank's loop shows."""
        self.forget(tensor)
        self.handed_out.forget(tensor)


def _is_sure(birth: Birth) -> bool:
    return birth.how != LAST and not birth.facts.keys() & {"unsure", "through"}


def _named(content: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of what a file held, by the script's way to each."""
    if isinstance(content, Tensor):
        yield name or "the tensor", content
    elif isinstance(content, dict) and depth < _DEEPEST:
        for key, item in content.items():
            yield from _named(item, f"{name}[{key!r}]" if name else str(key), depth + 1)
    elif isinstance(content, list | tuple) and depth < _DEEPEST:
        for index, item in enumerate(content):
            yield from _named(item, f"{name}[{index}]", depth + 1)

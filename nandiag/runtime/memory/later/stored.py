"""Bad values that outlive the step that makes them: in a bank or a queue, or as the loop keeps them (worker).

They may be read many steps later, when nothing is left of what made them. So a small value that is written into such
memory is looked at as it is written, in about 1 % of the time; what the step's calls made and somebody still holds, all
together before the update, in 0.4 % of it or 4 us a step. Where it is bad, what made it is run again for the op, before
the update too: once for each line, and each place in a model, in 3 s of a run at most, and else within 1 % of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.events import Looked
from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.patience import SHORT
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.frames import Place
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, is_bad, norms, quiet, read
from nandiag.runtime.memory.laid import is_finite
from nandiag.runtime.memory.later.lasting import lasting, written_within
from nandiag.runtime.memory.there import storage_of
from nandiag.runtime.tape.calls.strangers import has_strangers
from nandiag.runtime.tape.entry import ROOT
from nandiag.runtime.tape.noted.consumed import ARGS, GRAD, OUTPUT
from nandiag.runtime.tape.packed.descent import ancestors, is_of_little
from nandiag.runtime.tape.packed.words import Given

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture
    from nandiag.runtime.tape.entry import Entry

_SHARE, _CREDIT, _CREDIT_AGAIN, _FREE = 0.01, 0.003, 0.5, 2
_SMALL, _MOST = 1 << 14, 64
_MOST_PLACES, _SPENT_ENOUGH = 32, 3.0
# So long one look may take: in steps, and in seconds at most and at least.
_STEPS, _LONGEST, _LEAST = 5, 1.0, 0.05
_SHARE_LASTING, _A_STEP, _CREDIT_LASTING = 0.004, 4e-6, 0.03
_MENDS = frozenset({
    "nan_to_num", "nan_to_num_", "where", "masked_fill", "masked_fill_", "nansum", "nanmean", "nanmedian", "isnan",
    "isfinite", "isinf",
})  # fmt: skip


class Laid(NamedTuple):
    """Memory that bad values were laid into, made at ``places``; ``looked`` is None where more than one line did so.

    ``bad``: how many there were then, where a model writes there in place.
    """

    memory: StorageWeakRef
    places: Sequence[Place]
    looked: Looked | None
    bad: int = 0


class Stored:
    """What was found of each such memory when bad values were first laid there, by its storage."""

    def __init__(self, capture: Capture, examine: Callable[[Tensor, float], Looked | None]) -> None:
        self._capture = capture
        self._examine = examine
        self._known: dict[int, Laid] = {}
        self._refused = False  # to look at what models keep
        self._tried: set[Hashable] = set()
        self._held: dict[Hashable, tuple[int, Looked]] = {}  # in which step it was bad there last
        self._now = time.thread_time  # what waits for a processor that others use is no cost of ours
        self._looks = 0
        self._began, self._spent, self._spent_again = time.perf_counter(), 0.0, 0.0
        self._left_for_lasting, self._since = _CREDIT_LASTING, self._began

    @guarded("births")
    def written(self, target: Tensor, laid: Any) -> None:
        """The loop is about to write ``laid`` as it is into ``target``."""
        if not isinstance(laid, Tensor) or not laid.is_floating_point():
            return
        if not laid.is_cpu or laid.numel() > _SMALL or self._left(self._spent) < 0:
            self._unseen(target)
            return
        began = self._now()
        lives_on = self._lives_on(target)
        with quiet():
            bad = lives_on and not is_finite(laid) and not _is_mask(laid)
        self._spent += self._now() - began
        if not bad and not self._known:
            return
        with quiet():
            if bad:
                self._note(target, laid)
            elif laid.nbytes >= target.untyped_storage().nbytes():
                self._known.pop(storage_of(target), None)

    def due(self) -> bool:
        """Whether :meth:`kept` has anything to look at, and time for it; asked before each update, so by few calls."""
        now = time.perf_counter()
        self._left_for_lasting = left = self._left_for_lasting + _A_STEP + _SHARE_LASTING * (now - self._since)
        self._since, tape = now, self._capture.tape
        if left <= 0:
            return False
        many = tape.jots.many  # as :func:`gives_data` has it
        without = [
            one[OUTPUT] for one in many
            if not one[GRAD] and (one[0] is None or not one[0].in_place or one[OUTPUT] is one[ARGS][0])
        ]  # fmt: skip
        return bool(tape._made or tape.jots.shelves or any(map(_is_float, without)))

    @guarded("births")
    def kept(self) -> None:
        """The update is about to be made: look at what the step's calls made that may be used in a later one."""
        if self._capture.elsewhere or self._capture.births.saves.under_way:
            return
        began = self._now()
        with quiet():
            made = lasting(self._capture.tape)
            fine = not made or all(map(math.isfinite, read(norms(made))))
            bad = [] if fine else [one for one in made if is_bad(one)]
            if self._known:
                self._forget_but(made, bad)
            window = self._capture.window
            ours = {id(pair[1]) for pair in (*window.stored, *window.numbers)}
            for one in bad:
                known = self._known.get(storage_of(one))
                if id(one) not in ours and (known is None or known.bad) and not _is_mask(one):
                    self._note(one, one)
        self._left_for_lasting -= self._now() - began

    def _forget_but(self, made: Sequence[Tensor], bad: Sequence[Tensor]) -> None:
        """What is all of some memory, and is finite by now, was made anew there."""
        still = set(map(storage_of, bad))
        for one in made:
            if storage_of(one) not in still and one.nbytes >= one.untyped_storage().nbytes():
                self._known.pop(storage_of(one), None)

    def of(self, tensor: Tensor) -> Looked | None:
        """Return how the bad values were made that were laid into the memory of ``tensor``; None if that is unknown."""
        known = self._live().get(storage_of(tensor))
        return None if known is None else known.looked

    def _note(self, target: Tensor, laid: Tensor) -> None:
        """Bad values go there: what made them is held until the update, when there is time to look."""
        tape, known = self._capture.tape, self._live().get(storage_of(target))
        maker = tape.maker(laid)
        places = () if maker is None else maker[0].places
        if known is not None:
            if known.places != places or (maker is None and known.bad != _bad_in(laid)):
                self._unseen(target)
            return
        if len(self._known) < _MOST:
            by_model = maker is None or maker[0].kind is ROOT
            passed = self._still(laid) if maker is None or by_model else self._passed_on(maker[0])
            bad = _bad_in(laid) if maker is None else 0
            self._known[storage_of(target)] = Laid(StorageWeakRef(target.untyped_storage()), places, passed, bad)
            if passed is None and self._can_be_looked_at(laid, None if maker is None else maker[0]):
                self._capture.window.stored.append((storage_of(target), laid))

    def _can_be_looked_at(self, laid: Tensor, maker: Entry | None) -> bool:
        """Whether what made it can be run again, and what goes into that is held already, or little.

        Of what a model keeps that is not done beside other threads of the script's, nor where models communicate, nor
        once it was refused: the run goes on.
        """
        tape = self._capture.tape
        if maker is None and not any(one is laid for one in written_within(tape)):
            return False
        if maker is None or maker.kind is ROOT:
            return not (self._refused or self._capture.communicates or Bystanders().of_script)
        return (maker.grad or is_of_little(maker)) and tape.hold(maker)

    def _still(self, laid: Tensor) -> Looked | None:
        """Return how a model made what it holds in a place, where that was bad in the step before too."""
        where, step = self._where_from(laid), self._capture.tape.step
        before = self._held.get(where)
        if before is None or before[0] < step - 1:
            return None
        self._held[where] = step, before[1]
        return before[1]

    def _passed_on(self, maker: Entry) -> Looked | None:
        """Return how what a line makes in each step was made at first, where it was seen to pass on what was bad."""
        if any(entry.name in _MENDS for entry in ancestors([maker])):
            return None
        given = (word.get() for entry in ancestors([maker]) for word in entry.words if type(word) is Given)
        known = (self._known.get(storage(tensor) or 0) for tensor in given if tensor is not None)
        return next((one.looked for one in known if one is not None and one.looked is not None), None)

    def _unseen(self, target: Tensor) -> None:
        """What is written there now may be bad as well, and made elsewhere."""
        known = self._known.get(storage_of(target)) if self._known else None
        if known is not None:
            self._known[storage_of(target)] = known._replace(looked=None)
            waiting = self._capture.window.stored
            waiting[:] = [one for one in waiting if one[0] != storage_of(target)]

    @guarded("births")
    def look(self) -> None:
        """The update is about to be made: look at how the bad values were made that were stored since the last one."""
        waiting = self._capture.window.stored
        for key, laid in [waiting.pop(0) for _ in range(len(waiting))]:
            known, looked = self._known.get(key), self._look(laid)
            if known is not None and looked is not None:
                self._known[key] = known._replace(looked=looked)
                if len(self._held) < _MOST:
                    self._held[self._where_from(laid)] = self._capture.tape.step, looked

    def _look(self, laid: Tensor) -> Looked | None:
        if not self._may_look(self._where_from(laid)):
            return None
        began = time.perf_counter()  # what waits in a replay is a cost of ours
        looked = None if self._may_not_be_undone(laid) else self._examine(laid, self._longest())
        self._spent_again += time.perf_counter() - began
        self._refused |= looked is not None and looked.outcome == "refused" and self._is_kept(laid)
        if looked is None or (looked.outcome, looked.source) != ("found", "op"):
            return None
        return replace(looked, facts={"made_at_step": self._capture.tape.step, **looked.facts})

    def _longest(self) -> float:
        """Return how long the next look may take, in seconds."""
        left = max(_SPENT_ENOUGH - self._spent_again, self._left(self._spent_again, _CREDIT_AGAIN), _LEAST)
        return min(left, _LONGEST, max(SHORT, _STEPS * self._capture.step_seconds))

    def _is_kept(self, laid: Tensor) -> bool:
        """Whether a model made it, and keeps it."""
        maker = self._capture.tape.maker(laid)
        return maker is None or maker[0].kind is ROOT

    def _may_not_be_undone(self, laid: Tensor) -> bool:
        """Whether a model keeps it that leads to what nobody could put back behind a look: the run goes on."""
        calls = [entry for entry in self._capture.tape.entries if entry.kind is ROOT]
        return self._is_kept(laid) and any(one.lost or one.split or has_strangers(one.function) for one in calls)

    def _may_look(self, where: Hashable) -> bool:
        """Whether there is time; it is taken for what comes from a place for the first time, as a rule.

        Else what is bad in each step, and does no harm, would use up all of it.
        """
        self._looks += 1
        is_new = where not in self._tried and len(self._tried) < _MOST_PLACES
        self._tried |= {where} if is_new else set()
        free = self._looks <= _FREE or (is_new and self._spent_again < _SPENT_ENOUGH)
        return free or self._left(self._spent_again, _CREDIT_AGAIN) >= 0

    def _where_from(self, laid: Tensor) -> Hashable:
        maker = self._capture.tape.maker(laid)
        if maker is None:
            return storage_of(laid)
        entry, index = maker
        ways = [(place.key, way) for place, found in entry.sides for way in found]
        beside = index - entry.first_side
        return ways[beside] if 0 <= beside < len(ways) else tuple(entry.places[:1])

    def _lives_on(self, target: Tensor) -> bool:
        base = target._base if target._is_view() and target._base is not None else target
        made = self._capture.tape.maker(base)
        return not base.requires_grad and (made is None or made[0].in_place or made[0].step != self._capture.tape.step)

    def _live(self) -> dict[int, Laid]:
        if self._known:
            self._known = {key: one for key, one in self._known.items() if not one.memory.expired()}
        return self._known

    def _left(self, spent: float, credit: float = _CREDIT) -> float:
        return credit + _SHARE * (time.perf_counter() - self._began) - spent


def _bad_in(tensor: Tensor) -> int:
    counted = fact(tensor)
    return counted.nan + counted.posinf + counted.neginf


def _is_float(output: Tensor | None) -> bool:
    return output is not None and output.is_floating_point()


def _is_mask(tensor: Tensor) -> bool:
    """Whether it is -inf in places and else finite; a single number, such as a rate, masks nothing."""
    return tensor.dim() > 0 and fact(tensor).only_neginf

"""Bad values that the loop lays into memory which outlives the step: a bank, a queue, a replay buffer (worker).

They may be read many steps later, when nothing is left of what made them. So a small value that is written into such
memory is looked at as it is written, in about 1 % of the time; where it is bad, what made it is run again for the op,
before the step's update, but for the first two within as much time again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.events import Looked
from nandiag.runtime.frames import Place
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, quiet
from nandiag.runtime.memory.laid import is_finite
from nandiag.runtime.tape.window import is_of_little

if TYPE_CHECKING:
    from nandiag.runtime.tape.capture import Capture

_SHARE, _CREDIT, _FREE = 0.01, 0.003, 2
_SMALL, _MOST = 1 << 14, 64


class Laid(NamedTuple):
    """Memory that bad values were laid into, made at ``places``; ``looked`` is None where more than one line did so."""

    memory: StorageWeakRef
    places: Sequence[Place]
    looked: Looked | None


class Stored:
    """What was found of each such memory when bad values were first laid there, by its storage."""

    def __init__(self, capture: Capture, examine: Callable[[Tensor], Looked | None]) -> None:
        self._capture = capture
        self._examine = examine
        self._known: dict[int, Laid] = {}
        self._now = time.thread_time  # what waits for a processor that others use is no cost of ours
        self._looks = 0
        self._began, self._spent, self._spent_again = time.perf_counter(), 0.0, 0.0

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
            bad = lives_on and not is_finite(laid) and not fact(laid).only_neginf
        self._spent += self._now() - began
        if not bad and not self._known:
            return
        with quiet():
            if bad:
                self._note(target, laid)
            elif laid.nbytes >= target.untyped_storage().nbytes():
                self._known.pop(_key(target), None)

    def of(self, tensor: Tensor) -> Looked | None:
        """Return how the bad values were made that were laid into the memory of ``tensor``; None if that is unknown."""
        known = self._live().get(_key(tensor))
        return None if known is None else known.looked

    def _note(self, target: Tensor, laid: Tensor) -> None:
        """Bad values go there: what made them is held until the update, when there is time to look."""
        tape, known = self._capture.tape, self._live().get(_key(target))
        maker = tape.maker(laid)
        places = () if maker is None else maker[0].places
        if known is not None:
            if known.places != places:
                self._unseen(target)
            return
        if len(self._known) < _MOST:
            self._known[_key(target)] = Laid(StorageWeakRef(target.untyped_storage()), places, None)
            if maker is not None and is_of_little(maker[0]) and tape.hold(maker[0]):
                self._capture.window.stored.append((_key(target), laid))

    def _unseen(self, target: Tensor) -> None:
        """What is written there now may be bad as well, and made elsewhere."""
        known = self._known.get(_key(target)) if self._known else None
        if known is not None:
            self._known[_key(target)] = known._replace(looked=None)
            waiting = self._capture.window.stored
            waiting[:] = [one for one in waiting if one[0] != _key(target)]

    @guarded("births")
    def look(self) -> None:
        """The update is about to be made: look at how the bad values were made that were stored since the last one."""
        waiting = self._capture.window.stored
        for key, laid in [waiting.pop(0) for _ in range(len(waiting))]:
            known, looked = self._known.get(key), self._look(laid)
            if known is not None and looked is not None:
                self._known[key] = known._replace(looked=looked)

    def _look(self, laid: Tensor) -> Looked | None:
        if self._looks >= _FREE and self._left(self._spent_again) < 0:
            return None
        self._looks += 1
        began = self._now()
        looked = self._examine(laid)
        self._spent_again += self._now() - began
        if looked is None or (looked.outcome, looked.source) != ("found", "op"):
            return None
        return replace(looked, facts={**looked.facts, "made_at_step": self._capture.tape.step})

    def _lives_on(self, target: Tensor) -> bool:
        base = target._base if target._is_view() and target._base is not None else target
        made = self._capture.tape.maker(base)
        return not base.requires_grad and (made is None or made[0].in_place or made[0].step != self._capture.tape.step)

    def _live(self) -> dict[int, Laid]:
        if self._known:
            self._known = {key: one for key, one in self._known.items() if not one.memory.expired()}
        return self._known

    def _left(self, spent: float) -> float:
        return _CREDIT + _SHARE * (time.perf_counter() - self._began) - spent


def _key(tensor: Tensor) -> int:
    data = getattr(tensor, "_local_tensor", tensor)
    return int(data.untyped_storage()._cdata)

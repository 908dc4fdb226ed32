"""What this rank hands to others bad, looked at before it goes: there it may be the first harm that anybody sees.

A rank that only sends (a stage of a pipeline by hand, one that makes the data, a server of features) never sees harm of
its own, and may be steps ahead when others do. Small looks take the same share of the time as those at what the script
writes before it trains; running again what the step did so far takes as much, but for the first two. Worker.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, float16

from nandiag.events import Looked, Sent, Site, words
from nandiag.runtime.births.told import tell
from nandiag.runtime.collectives.messages import ALL_GIVE, ARRIVALS, Filling, Message, Post, given_to
from nandiag.runtime.collectives.objects.handing import Objects
from nandiag.runtime.collectives.ring import RING, Call
from nandiag.runtime.evidence.exchange.exchanged import OPS
from nandiag.runtime.evidence.exchange.halves import HALVES
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import taken_with_heard, with_heard
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import TORCH, kind_of, stack
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import fact, quiet
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.exchange import after_backward, is_apart

if TYPE_CHECKING:
    from nandiag.runtime.births.births import Births

_SHARE, _FRAMES = 0.01, 4
_FREE = {False: 2, True: 1}
_MOST_OF_A_LINE, _MOST_LINES = 16, 16
Examine = Callable[[Tensor], Looked | None]


class Handed:
    """Listens to what is handed over; ``examine`` tells how this rank made a tensor in this step, if it can."""

    def __init__(self, capture: Capture, examine: Examine) -> None:
        self._capture = capture
        self._examine = examine
        self._post = Post()
        self._told: Counter[tuple[int, int]] = Counter()
        self._looks: Counter[bool] = Counter()
        self._began, self._spent = time.perf_counter(), 0.0

    def watch(self) -> None:
        """Begin to listen."""
        RING.handing.append(guarded("handed")(self.begins))
        RING.ended.append(guarded("handed")(HALVES.ended))
        self._capture.works.through.append(guarded("handed")(HALVES.waited))
        Objects(self._capture, self._tells_object).watch()

    def begins(self, calls: list[Call], args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """Calls of ``torch.distributed`` begin."""
        ARRIVALS.newest = None
        self._in_half(calls[0], args, kwargs, caller)
        if calls[0].op in ALL_GIVE and self._is_passed_over(given_to(calls[0], args, kwargs), caller):
            return
        births = self._capture.births
        for part in self._post.parts(calls, args, kwargs):
            if births is None or self._capture.off:
                continue
            if part.asked and ARRIVALS.newest is None:
                ARRIVALS.newest = part.message
            call = part.call or (calls[0] if len(calls) == 1 else None)
            filling = None if call is None else Filling(call, finite=False)
            with quiet():
                for tensor in part.asked:
                    ARRIVALS.note(tensor, part.message, filling)
                bad = self._first_bad(births, part.given, filling)
            if bad is not None and self._may_be_meant(bad):
                self._tell_computed(part.message, bad, caller)
            elif bad is not None and self._may_tell(caller):
                self._tell(births, part.message, bad, caller)

    def _in_half(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> None:
        """What goes into a sum in float16 is looked at, gradients too: the sum may leave that dtype."""
        if call.dtype is float16 and not (self._capture.off or _is_of_torch(caller)):
            HALVES.begins(call, args, kwargs, self._capture.tape.step, caller)

    def _is_passed_over(self, given: Sequence[Tensor], caller: FrameType) -> bool:
        """Whether an exchange in which all give is none of ours; asked first, for most are of gradients."""
        return self._is_told_anyway(given) or _is_of_torch(caller)

    def _is_told_anyway(self, given: Sequence[Tensor]) -> bool:
        """Whether it is known what goes into a reduction: each op is watched, or gradients go, which are harm here."""
        if self._capture.window.shut:
            return True
        return after_backward(self._capture) and not any(map(self._is_apart, given))

    def _is_apart(self, tensor: Tensor) -> bool:
        """Whether calls of this step have made ``tensor`` of nothing that came from a loss, nor from a gradient."""
        made = self._capture.tape.maker(tensor)
        return made is not None and is_apart(made[0], self._capture)

    def _may_tell(self, caller: FrameType) -> bool:
        """Whether there is room for one more: what a line fills up with NaN on purpose leaves that of others."""
        line = id(caller.f_code), caller.f_lasti
        self._told[line] += 1
        return self._told[line] <= _MOST_OF_A_LINE and len(self._told) <= _MOST_LINES

    @staticmethod
    def _first_bad(births: Births, given: Sequence[Tensor], filling: Filling | None) -> Tensor | None:
        """Return the first that is bad, and note in ``filling`` where all are known not to be.

        What lies on a device is not waited for.
        """
        unknown = not given
        for one in given:
            here = one.device.type == "cpu" and one.is_floating_point()
            bad = births.record.finds_bad(one) if here else None
            if bad:
                return one
            unknown = unknown or bad is None
        if filling is not None:
            filling.finite = not unknown
        return None

    @staticmethod
    def _may_be_meant(tensor: Tensor) -> bool:
        """-Inf alone is a mask, as many a rank hands them on, and one infinite number may be the best so far."""
        found = fact(tensor)
        return found.only_neginf or (found.numel == 1 and not found.nan)

    def _tell_computed(self, message: Message, bad: Tensor, caller: FrameType) -> None:
        """What may be meant is told only where the step, run again, shows that it was computed."""
        looked = self._again(message, bad, mask=True)
        made = looked is not None and (looked.outcome, looked.source) == ("found", "op") and looked.site is not None
        if looked is None or not made or _is_laid(looked) or not self._may_tell(caller):
            return
        self._emit(message, looked, caller)

    def _tell(self, births: Births, message: Message, bad: Tensor, caller: FrameType) -> None:
        looked = self._again(message, bad)
        if looked is None or looked.outcome != "found":
            reason = None if looked is None else looked.reason
            born = self._born(births, bad, self._capture.tape.step)
            looked = with_heard(self._here(message, bad, caller, reason)) if born is None else taken_with_heard(born)
        self._emit(message, looked, caller)

    def _tells_object(self, message: Message, bad: Tensor, caller: FrameType) -> bool:
        """Tell how this rank made a tensor that it hands over in an object; returns whether that is known."""
        looked = None if self._may_be_meant(bad) else self._again(message, bad)
        if looked is None or looked.outcome != "found":
            return False
        self._emit(message, replace(looked, facts={**looked.facts, "by_object": True}), caller)
        return True

    def _emit(self, message: Message, looked: Looked, caller: FrameType) -> None:
        looked, site = replace(looked, step=self._capture.tape.step), self._site(message, caller)
        RECORDER.emit(Sent(message.kind, message.ranks, message.number, message.group, looked, site), urgent=True)

    def _site(self, message: Message, caller: FrameType) -> Site:
        spot = Spot(None, None, stack(caller, _FRAMES)[0], "collective", self._capture.tape.micro_step)
        with quiet():
            return site_of(spot, f"c10d::{OPS[message.kind]}.default" if message.kind in OPS else None)

    def _again(self, message: Message, bad: Tensor, *, mask: bool = False) -> Looked | None:
        """Return what running the step again, as far as it has come, showed; None where there is no time for it.

        What may be a ``mask`` takes none of the first few looks from what is none. Where models communicate all ranks
        are needed for that, but for what comes before the first message.
        """
        capture = self._capture
        needs_all = capture.communicates and message.kind in ALL_GIVE
        taped = not (capture.idle or capture.depth or capture.in_step or needs_all)
        passed = time.perf_counter() - self._began
        late = self._looks[mask] >= _FREE[mask] and self._spent > _SHARE * passed
        if late or not (taped or capture.window.shut):
            return None
        self._looks[mask] += 1
        began = time.perf_counter()
        looked = self._examine(self._as_taped(bad))
        self._spent += time.perf_counter() - began
        return looked

    def _as_taped(self, tensor: Tensor) -> Tensor:
        """Return what a call of this step has made, where ``tensor`` is it by another name: detached in a function."""
        tape = self._capture.tape
        with quiet():
            if tape.maker(tensor) is not None:
                return tensor
            return next((made for _, made in tape.living() if _is_same(made, tensor)), tensor)

    @staticmethod
    def _born(births: Births, bad: Tensor, step: int) -> Looked | None:
        birth = births.of(bad)
        with quiet():
            return None if birth is None else tell(bad, None, birth, step)

    def _here(self, message: Message, bad: Tensor, caller: FrameType, reason: str | None) -> Looked:
        """Where it was handed over is all that is known."""
        with quiet():
            return Looked(
                outcome="found", method="message", step=0, micro_step=self._capture.tape.micro_step, phase="collective",
                source="outside", site=self._site(message, caller), inputs=(fact(bad),),
                reason=reason,
            )  # fmt: skip


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are of the same memory, all of it in the same order."""
    alike = type(one) is Tensor and (one.shape, one.stride()) == (other.shape, other.stride())
    return alike and storage(one) == storage(other) and one.storage_offset() == other.storage_offset()


def _is_of_torch(caller: FrameType) -> bool:
    """Whether torch exchanges it by itself, as FSDP its weights for each layer."""
    return kind_of(caller.f_code.co_filename) == TORCH


def _is_laid(looked: Looked) -> bool:
    """Whether the script wrote the number down as it is."""
    return looked.site is not None and words.laid(looked.site.op or "", looked.inputs, looked.facts) is not None

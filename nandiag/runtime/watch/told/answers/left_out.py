"""Steps that the script leaves out behind a bad loss: counted, and the first is led back to its line (worker).

Either it calls no backward, having asked whether its loss is finite, or it throws the gradients away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked, Skipped
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import is_bad, quiet
from nandiag.runtime.look.losses import Loss
from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Optimizer
from nandiag.runtime.replay.ready import CLIPS, gradients_used
from nandiag.runtime.tape.entries import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.packed.words import Made
from nandiag.runtime.watch.judge import left_out_by_script
from nandiag.runtime.watch.told.answers.asked import Asked

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel

_MOST_LOOKS = 2


class LeftOut:
    """Told at the next border: until then the script may still use what it seems to leave out."""

    def __init__(self, sentinel: Sentinel, asked: Asked) -> None:
        self._sentinel, self.asked = sentinel, asked
        self._looks = 0

    @guarded("questions")
    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """A loss is used: bad ones that the script had asked of before are not, unless it is made of them."""
        sentinel, known = self._sentinel, self.asked.known
        self.asked.known = []
        with quiet():
            if any(map(is_bad, roots)):
                return
        losses, optimizer = sentinel.losses, sentinel.optimizer
        tape = sentinel.capture.tape
        words = (word for entry in tape.entries if entry.kind == BACKWARD for word in entry.words)
        called = {id(word.entry) for word in words if type(word) is Made}
        here = [one for one in known if one.step == sentinel.clock.step]
        fresh = [one for one in here if id(self.asked.loss_of(one.tensor)) not in called]
        forward = max((entry.number for entry in tape.entries if entry.kind == ROOT), default=0)
        for one in fresh:
            maker = tape.maker(one.tensor)
            term = maker is not None and maker[0].number > forward and not one.norm
            if optimizer is None or not sentinel.weights.sharded(optimizer):
                loss = Loss(one.tensor, sentinel.clock.micro_step, exact=True, scaled=False, term=term)
                losses.unused(loss, step=not (one.norm or term))
            elif not (one.norm or term):
                sentinel.skips.by_script(Skipped(sentinel.clock.step, None, 1, 0, one.tensor.item(), by="script"))

    def judge(self, optimizer: Optimizer, sight: Sight) -> Sight:
        """Tell the bad losses among those that were dropped; returns ``sight`` with what turned out to be used."""
        sentinel = self._sentinel
        losses, capture = sentinel.losses, sentinel.capture
        bad = left_out_by_script(sight, losses.pending, losses.dropped)
        # The script changed the weights by these gradients (SAM) before it dropped them. No rank alone can run again
        # what is sharded: there it is harm, which all of them look at.
        if bad and (sentinel.weights.sharded(optimizer) or gradients_used(capture.tape.entries[: capture.mark])):
            there = len(losses.pending)
            losses.pending = [*losses.dropped, *losses.pending]
            losses.dropped = []
            return sight._replace(losses=(*sight.losses[there:], *sight.losses[:there]))
        if bad:
            self._tell([loss for loss in losses.dropped if loss.exact], bad)
            capture.tape.cut(capture.mark)
        return sight

    @guarded("questions")
    def at_end(self) -> None:
        """The script ends: no border will see what it dropped last."""
        losses = self._sentinel.losses
        norms = [one for one in self.asked.known if one.norm and one.step == self._sentinel.clock.step]
        for one in norms:
            losses.unused(Loss(one.tensor, self._sentinel.clock.micro_step, exact=True, scaled=False), step=False)
        with quiet():
            bad = [value for one in losses.dropped if one.exact and not math.isfinite(value := one.value.item())]
        if bad:
            self._tell(losses.dropped, bad, last=True)
        self._sentinel.skips.last_words()
        losses.dropped.clear()
        losses.drops = 0

    @guarded("questions")
    def _tell(self, losses: Sequence[Loss], values: list[float], *, last: bool = False) -> None:
        sentinel, tape = self._sentinel, self._sentinel.capture.tape
        with quiet():
            bad = [one for one in losses if is_bad(one.value)] or [losses[0]]
        known = tape.maker(bad[0].value)
        maker = _maker(bad[0], tape.entries) if known is None else known[0]
        skip = Skipped(
            sentinel.clock.step, None, self._count(bad), 0, values[0], by="script",
            look=self._look(bad[0].value, maker), last=last,
            of="term" if bad[0].term else "gradient norm" if maker is not None and maker.name in CLIPS else "loss",
        )  # fmt: skip
        sentinel.skips.by_script(skip)

    def _count(self, bad: Sequence[Loss]) -> int:
        """Return how many steps the ``bad`` ones stand for: of a loss there may be several, of a norm there is one."""
        tape = self._sentinel.capture.tape
        makers = [known[0] for one in bad if (known := tape.maker(one.value)) is not None]
        norms, terms = sum(maker.name in CLIPS for maker in makers), sum(one.term for one in bad)
        return max(1, norms, min(len(bad) - norms - terms, self._sentinel.losses.drops))

    def _look(self, value: Tensor, maker: Entry | None) -> Looked | None:
        """Return how a bad ``value`` was made; None where that is not found, or was of an earlier one."""
        if self._looks >= _MOST_LOOKS or maker is None:
            return None
        self._looks += 1
        self._sentinel.capture.tape.made(maker, [value])
        looked = self._sentinel.looker.examine_handed(value)
        if looked is None or looked.outcome != "found":
            return None
        self._looks = _MOST_LOOKS
        return looked


def _maker(loss: Loss, entries: Sequence[Entry]) -> Entry | None:
    """Return what made a loss that a backward among ``entries`` was called on."""
    for entry in entries:
        if entry.kind == BACKWARD and entry.micro_step == loss.micro_step:
            return next((one.entry for one in entry.words if type(one) is Made and not one.index), None)
    return None

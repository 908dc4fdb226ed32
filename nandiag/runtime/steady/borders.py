"""The two borders of a plain short step: the same looks as the sentinel's, by few calls (worker).

A step of a few hundred microseconds feels each call that is made in it, and nearly all such steps are alike: few
losses, one optimizer of torch's own whose weights are few, one thread, one rank, all finite. Whatever is otherwise,
or not known, is left to the sentinel: nothing is changed here before all that was looked at is known to be well.
"""

from __future__ import annotations

import math
import sys
from threading import get_ident as _ident
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nandiag.runtime.look.finite import read
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.steady.assured import Assured, is_plain
from nandiag.runtime.steady.ends import Ends
from nandiag.runtime.steady.rows import Rows
from nandiag.runtime.tape.state import capturing

if TYPE_CHECKING:
    from nandiag.runtime.look.losses import Loss
    from nandiag.runtime.look.weights import Optimizer
    from nandiag.runtime.steady.trained import Trained
    from nandiag.runtime.watch.sentinel import Sentinel


class _NoGroup:
    """Stand in where torch was built without groups of processes."""

    WORLD = None


_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_group: Any = dist.GroupMember if dist.is_available() else _NoGroup
_finite = math.isfinite
# begins() is called by a guarded hook, that by torch's wrapper of step().
_HOOK_DEPTH = 3
# So many micro-batches are looked at one by one.
_LOSSES = 8
# Steps at which the sentinel takes stock of all modules.
STOCK = frozenset({10, 100, 1000})


class Borders:
    """Looks before and after an update in the place of the ``sentinel``, where that would find all to be plain."""

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._rows, self._ends = Rows(sentinel), Ends(sentinel.capture)
        window = sentinel.capture.window
        # What nearly always is empty, and always the same: whether anything is in any of it takes one call to ask.
        self._occupied = (
            window.numbers,
            window.stored,
            sentinel.teller.open,
            RECORDER.darkened,
            sentinel.left_out.asked.ways.stale,
        )
        self._assured: Assured | None = None  # of the update under way that was looked at here

    def begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """An update is about to be made; returns whether losses and gradients were looked at and are well."""
        self._assured = None
        sentinel = self._sentinel
        assured, window = sentinel.assurances.of(optimizer), sentinel.capture.window
        known = assured.trained
        if window.on:
            window.close()
        if known is None or len(args) != 1 or kwargs or not self._is_usual(optimizer, assured) or self._is_kept():
            return False
        if not known.is_same(optimizer) and not self._is_told_else(optimizer, known):
            return False
        pending = sentinel.losses.pending
        if (
            not 0 < len(pending) <= _LOSSES
            or not all(map(_is_one, pending))
            or (norm := known.gradients_norm()) is None
        ):
            return False
        loss = pending[0].value.item() if len(pending) == 1 else sum(one.value.item() for one in pending) / len(pending)
        waits = bool(sentinel.early.tensors)
        well = _finite(loss + norm) and (not waits or self._hears()) and self._are_frozen_well()
        if well and assured.begins_plainly(norm):
            self._assured = assured
            self._looked(optimizer, loss, norm, clipped=waits and sentinel.early.clips)
            sentinel.nesting.begins(sys._getframe(_HOOK_DEPTH))
        return self._assured is not None

    def _hears(self) -> bool:
        """Read what the warnings have wait for it; returns whether it is finite: else it waits on."""
        early = self._sentinel.early
        values = read(early.tensors)
        if not _finite(sum(values)):
            return False
        early.waiting()
        early.read(values)
        return True

    def _takes_turns(self, assured: Assured) -> bool:
        """Whether another optimizer made the newest update, with gradients of its own; then this one is the newest."""
        sentinel = self._sentinel
        if not sentinel.behind.passes(assured.of):
            return False
        sentinel.weights.newest = assured.of
        return True

    def _are_frozen_well(self) -> bool:
        """Whether what nobody trains is finite; what is not is for the sentinel to find again."""
        frozen = self._sentinel.weights._frozen
        if not frozen.places or _finite(sum(read(frozen.norms()))):
            return True
        frozen.doubt()
        return False

    def _is_kept(self) -> bool:
        """Look at what the loop keeps for a later step, in its turn; returns whether any of it is bad."""
        capture = self._sentinel.capture
        stored = capture.births.stored
        if stored.due():
            stored.kept()
        return bool(capture.window.stored)

    def _is_told_else(self, optimizer: Optimizer, known: Trained) -> bool:
        """Whether all that is new is what the optimizer was told."""
        if not known.renew(optimizer, is_plain):
            return False
        if self._sentinel.early.told_else(optimizer, self._sentinel.clock.step):
            self._rows.ask()
        return True

    def _is_usual(self, optimizer: Optimizer, assured: Assured) -> bool:
        """Whether there is nothing to look at but losses and gradients, and nobody to agree with."""
        sentinel = self._sentinel
        weights, capture, refusal = sentinel.weights, sentinel.capture, sentinel.last.refusal
        return not (
            not assured.trusts(optimizer)
            or any(self._occupied)
            or not (weights.newest() is optimizer or self._takes_turns(assured))
            or sentinel.clock.step in STOCK
            or sentinel.clock._in_backward
            or capture._thread != _ident()
            or capture.tracer is not None
            or capture.off
            or capture.births is None
            or capturing()
            or weights._excused
            or weights._masked
            or sentinel._waiting
            or sentinel._scale is not None
            or sentinel.losses.dropped
            or sentinel.nesting._frames
            or sentinel.looker.live.started
            or sentinel.looker.modules is not None
            or sentinel.looker._missed is not None
            or refusal._call is not None
            or refusal._error
            or hasattr(optimizer, "found_inf")
            or RECORDER._writer is None
            or _stacked()
            or _dispatched()
            or (_group.WORLD is not None and sentinel.agreement.possible)
        )

    def _looked(self, optimizer: Optimizer, loss: float, norm: float, *, clipped: bool) -> None:
        sentinel = self._sentinel
        sentinel._newest = sentinel.weights.newest
        sentinel._under_way.scaler_skips = False
        early = sentinel.early
        before, clip = early.clipping(norm) if clipped else (norm, None)
        if norm > 0.0 and self._rows.take(optimizer, loss, before, clip):
            if clipped:
                early.norm(norm)
                early.clip()
            if early.passed:
                early.passed.clear()
            return
        sentinel._remember(optimizer, loss, norm)
        self._rows.renew(optimizer)

    def ended(self, optimizer: Optimizer) -> bool:
        """It was made; returns whether weights were looked at, are well, and the step is over."""
        assured, self._assured = self._assured, None
        if assured is None:
            return False
        sentinel = self._sentinel
        if self._is_unusual_end() or not assured.look_plainly():
            return False
        sentinel.nesting.leave()
        sentinel.skips.used()
        clock = sentinel.clock
        sentinel.judge.finite_after = clock.updated(optimizer)
        if clock._in_backward or sentinel.losses.dropped or not self._ends.step_ends(clock.step):
            sentinel._next_step()
            return True
        sentinel.losses.pending.clear()
        RECORDER.pulse(clock.step)
        return True

    def _is_unusual_end(self) -> bool:
        """Whether what ends now is not the outermost update, or may have been kept from being made."""
        sentinel = self._sentinel
        hides = bool(sentinel._under_way._hidden)
        return sentinel.capture.off or capturing() or len(sentinel.nesting._frames) != 1 or hides or sentinel.judge.lost


def _is_one(loss: Loss) -> bool:
    """Whether it is a plain number on the host."""
    return loss.exact and not loss.scaled and loss.value.is_cpu

"""The borders of a script that has no optimizer: each backward call, or ``autograd.grad``, ends a step (worker).

Such a script makes its updates by itself, in the open: the gradients are looked at when they have come, and what the
update left when the next backward begins.

Where it scales its loss by itself, and the step has finite gradients when it is run again without the scale, those that
are not are no harm yet: it may leave the update out and lower its scale, as a GradScaler does. Whether they were used
is seen by the weights when the next backward begins; until then the tape keeps all that it has. So it is with any that
come before the script's first update: it may be a test of its own that asks for them, and an optimizer may come yet.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from nandiag.events import Looked, Skipped
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.guard import guarded
from nandiag.runtime.leaves import leaves_of, names_in_script
from nandiag.runtime.levels.looker import Looker
from nandiag.runtime.look.finite import norms, quiet, read
from nandiag.runtime.look.losses import Losses, roots_of
from nandiag.runtime.look.sight import Sight, look
from nandiag.runtime.look.weights import parameters
from nandiag.runtime.replay.case import Case
from nandiag.runtime.tape.state import capturing
from nandiag.runtime.together.gathered import Gathered
from nandiag.runtime.watch.clock import Clock
from nandiag.runtime.watch.judge import Border, Judge
from nandiag.runtime.watch.told.answers.search import InSearch
from nandiag.runtime.watch.told.unused import Unused

# So many times in a row weights have changed from one backward call to the next, of so many that are looked at.
_TURNS, _MOST_TURNS = 2, 8


class Settle(Protocol):
    """How the sentinel acts on what a border shows."""

    def __call__(self, optimizer: None, border: Border, *, examine: Callable[[bool], None] | None) -> None:
        """Write the harm down, have it examined by ``examine``, and go on or stop."""


class Bare:
    """What such a script trains, by the graphs of its backward calls."""

    def __init__(self, judge: Judge, looker: Looker, settle: Settle, skipped: Callable[[Skipped], object]) -> None:
        self._judge = judge
        self._looker = looker
        self._settle = settle
        self._finite: dict[int, weakref.ref[Tensor]] = {}
        self._gathered = Gathered()
        self._known: tuple[list[int], list[float]] = [], []  # of which weights, and their norm
        self._in_search, self._unused = InSearch(skipped, looker.asks), Unused(skipped)
        self._in_a_row, self._waited = 0, set[tuple[int, int]]()
        looker.shown_before = self._used_yet
        self.on_anew: Callable[[Tensor], object] | None = None

    def begins(self, roots: list[Tensor], given: Any = None) -> None:
        """A backward call from ``roots`` begins, ``given`` gradients: look at what the last update by hand has left."""
        self.sees(roots, given)
        self._begins(roots)

    def sees(self, roots: Any, given: Any = None) -> None:
        """Gradients of ``roots`` are about to be computed, by a backward call or ``autograd.grad``."""
        self._in_search.sees(roots_of(roots), given)

    def _begins(self, roots: list[Tensor]) -> None:
        self._judge.leaves = leaves = self._gathered.parts(leaves_of(roots))
        if self.on_anew is not None and leaves and self._finite and not any(map(self._is_known, leaves)):
            self.on_anew(leaves[0])
        self._look_at_weights(self._judge.leaves)
        self._in_search.begins(self._judge.clock.step)
        self._unused.begins(self._judge.clock.step)

    def _is_known(self, leaf: Tensor) -> bool:
        known = self._finite.get(id(leaf))
        return known is not None and known() is leaf

    @property
    def waits(self) -> bool:
        """Whether the gradients of the newest backward are not finite, and may yet be left out."""
        return self._in_search.waits or self._unused.waits

    @property
    def has_updated(self) -> bool:
        """Whether the script was seen to change its weights."""
        return self._unused.has_updated

    def optimizer_made(self, next_step: Callable[[], object]) -> None:
        """An optimizer is being made: what waits is done with, for that will look at the gradients it uses itself."""
        if self._unused.waits:
            self._waited = {_content(one.grad) for one in self._held() if one.grad is not None}
            self._look_at_weights([])
            next_step()

    def finish(self, border: Border) -> None:
        """No backward comes any more: take what gradients that wait have done for harm, where they were used."""
        if not self.waits:
            return
        leaves = self._held()
        with quiet():
            self._judge.by_hand(self._named(leaves), set(map(id, leaves)), border)
        self._in_search.ends(border)
        self._unused.is_last(border)
        if border.harms and (shown := self._shown) is not None:
            self._looker.tell(shown)

    @property
    def _shown(self) -> Looked | None:
        """What was seen of a step that is held back when its gradients had come, if anything."""
        return self._in_search.shown or self._unused.shown

    def _held(self) -> list[Tensor]:
        return [one for held in self._finite.values() if (one := held()) is not None]

    def let_go(self, tensors: Iterable[Tensor]) -> None:
        """Hold no reference to these any more: they are seen finite again before they are told to have been so."""
        for one in tensors:
            self._finite.pop(id(one), None)

    def ended(self) -> Sight:
        """The backward call is over: the leaves have their gradients, and no update by hand has used them yet."""
        leaves = self._judge.leaves
        with quiet():
            sight, border = self._look([one.grad for one in leaves if one.grad is not None])
            if _bad(sight):
                named = [(name, one.grad) for name, one in self._named(leaves) if one.grad is not None]
                self._judge.returned(named, sight, border)
        if self._is_held(sight, border, self._without):
            self._judge.leaves = []
            return sight
        self._act(border, leaves)
        if any(getattr(one, "_post_accumulate_grad_hooks", None) for one in leaves):
            self._look_at_weights(leaves, within=True)  # now: what made them is on the tape until the step is over
        self._judge.leaves = []
        return sight

    def returned(self, roots: list[Tensor], gradients: list[Tensor]) -> Sight:
        """``autograd.grad`` has returned ``gradients`` of ``roots``."""
        self._begins(roots)
        self._looker.backward_begins(roots)
        with quiet():
            sight, border = self._look(gradients)
            if _bad(sight):
                named = [(f"gradient {number}", one) for number, one in enumerate(gradients)]
                self._judge.returned(named, sight, border)
        given = (*roots, *gradients)
        if not self._is_held(sight, border, lambda factor: self._again(given, factor) if factor == 1.0 else None):
            self._act(border, [], given)
        self._judge.leaves = []
        return sight

    def _is_held(self, sight: Sight, border: Border, look: Callable[[float], Looked | None]) -> bool:
        held = self._in_search.takes(sight, border, look)
        if not held and self._judge.leaves and not self._judge.lost and self._in_a_row < MANY_IN_A_ROW:
            held = self._unused.takes(sight, border, look)
        self._in_a_row = self._in_a_row + 1 if held else 0
        return held

    def _used_yet(self, case: Case) -> Looked | None:
        """What was seen of gradients when they had come, where an optimizer that was made since then has them."""
        shown = self._unused.shown
        if shown is None or shown.outcome != "found" or case.joint or not case.gradients:
            return None
        return replace(shown, step=case.step) if set(map(_content, case.gradients)) & self._waited else None

    def _look(self, gradients: list[Tensor]) -> tuple[Sight, Border]:
        border = Border()
        sight = look(self._judge.losses.pending, gradients, None, None)
        self._judge.losses_of(None, sight, border)
        return sight, border

    def _look_at_weights(self, leaves: list[Tensor], *, within: bool = False) -> None:
        """Weights that an update by hand has made bad since the last look, or that were bad from the start.

        ``within``: hooks may have made it in the backward that is just over.
        """
        if self._judge.lost:
            return
        if self._unused.waits:
            known = set(map(id, leaves))
            leaves = [*leaves, *(one for one in self._held() if id(one) not in known)]
        border = Border()
        with quiet():
            values, which = read(norms(leaves)), list(map(id, leaves))
            if all(map(math.isfinite, values)):
                if self._known[0] == which and self._known[1] != values:
                    self._in_search.updated()
                    self._unused.updated()
                self._known = which, values
                self._finite = {id(one): weakref.ref(one) for one in leaves}
                self._end(border)
                return
            seen = {key for key, reference in self._finite.items() if reference() is not None}
            bad = self._judge.by_hand(self._named(leaves), seen, border, within=within)
            self._end(border)
        if border.harms:
            step = border.harms[0].step
            updated = within or step < self._judge.clock.step
            case = Case(
                step, bad, joint=False, suspects=tuple(bad), weights_were_finite=updated, by_hand=True, within=within
            )
            shown = self._shown if step < self._judge.clock.step else None
            self._settle(None, border, examine=lambda ends: self._examine(replace(case, ends=ends), shown))

    def _end(self, border: Border) -> None:
        self._in_search.ends(border)
        self._unused.ends(border)

    def _act(self, border: Border, leaves: list[Tensor], gradients: tuple[Tensor, ...] = ()) -> None:
        given = gradients or tuple(one.grad for one in leaves if one.grad is not None)
        case = Case(self._judge.clock.step, leaves, joint=False, gradients=given, by_hand=True)
        self._settle(None, border, examine=lambda ends: self._examine(replace(case, ends=ends)))

    def _examine(self, case: Case, shown: Looked | None = None) -> None:
        """Look at the step; ``shown`` is what was seen of it when its gradients had come, if anything."""
        if shown is None:
            self._looker.examine(case)
        else:
            self._looker.tell(shown)

    def _without(self, factor: float) -> Looked | None:
        """Run the step again without a ``factor`` of its loss, before it is known whether it does any harm."""
        return self._again(tuple(one.grad for one in self._judge.leaves if one.grad is not None), factor)

    def _again(self, given: tuple[Tensor, ...], factor: float) -> Looked | None:
        step, leaves = self._judge.clock.step, self._judge.leaves
        case = Case(step, leaves, joint=False, spoken=given, by_hand=True, factor=factor)
        return self._looker.examine_quietly(case)

    def _named(self, leaves: list[Tensor]) -> list[tuple[str, Tensor]]:
        with torch._C.DisableTorchFunction():
            own = names_in_script(leaves)
        owners = self._judge.weights.owners
        named = [owners[id(one)].fqn if id(one) in owners else own.get(id(one)) for one in leaves]
        return [(name or f"a {_shape(one)} tensor", one) for name, one in zip(named, leaves, strict=True)]


class ByHand:
    """Whether a script that has an optimizer makes all updates by hand: of that it uses ``zero_grad`` alone.

    Before any update of an optimizer weights change from one backward call to the next. It is as if none existed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._left = clock, _MOST_TURNS
        self._known: tuple[list[int], list[float]] = [], []
        self._backwards = self._changes = 0

    @guarded("updates by hand")
    def dropped(self, owner: Any, losses: Losses) -> None:
        """The gradients of what ``owner`` trains are dropped; no update was made yet."""
        clock = self._clock
        if self._left <= 0 or not (clock.has_optimizer and clock.trains) or capturing():
            return
        self._left -= 1
        own = parameters(owner) if isinstance(owner, torch.optim.Optimizer) else list(owner.parameters())
        with quiet():
            which, values = list(map(id, own)), read(norms(own))
            waiting = read([one.value.sum() for one in (*losses.pending, *losses.dropped)])
        changed = clock.micro_step > self._backwards and self._known[0] == which and self._known[1] != values
        self._changes = self._changes + 1 if changed and all(map(math.isfinite, (*values, *waiting))) else 0
        self._known, self._backwards = (which, values), clock.micro_step
        if self._changes >= _TURNS:
            clock.has_optimizer = False


def _bad(sight: Sight) -> bool:
    return sight.grad_norm is not None and not math.isfinite(sight.grad_norm)


def _content(gradient: Tensor) -> tuple[int, int]:
    """Return what tells whether a gradient was written to or made anew since."""
    return gradient.data_ptr(), gradient._version


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"

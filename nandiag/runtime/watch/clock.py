"""Which step and micro-step it is: the step is the largest count of updates of any one optimizer (worker)."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from threading import get_ident as _ident

import torch
from torch.utils.weak import WeakIdKeyDictionary

from nandiag.runtime.names.alive import living
from nandiag.runtime.public import told_step

_graph_task = torch._C._current_graph_task_id
_MOST, _BESIDE, _NOBODY = 64, sys.maxsize, 0


class Count:
    """How many updates one optimizer has made, of what class it is, and how many steps there were before its first.

    ``number``: how many optimizers were made before it, and ``first``: before its first update. ``thread`` is the one
    that made the newest, and ``round`` that of the newest.
    """

    __slots__ = ("before", "first", "kind", "number", "round", "thread", "updates")

    def __init__(self, before: int, kind: str | None, number: int = 0, first: int = 0) -> None:
        self.before = before
        self.first = first
        self.kind = kind
        self.number = number
        self.round = -1
        self.thread = _NOBODY
        self.updates = 0


class Clock:
    """Counts optimizer steps and backward calls; updates that a GradScaler left out are not steps."""

    def __init__(self) -> None:
        self.step = 0
        self.micro_step = 0
        self._in_backward = self._updated_there = False
        self.hooked = False  # whether hooks ever made updates within a backward call
        self._ticked = False  # the newest backward call was counted as a step by itself
        self._reached = self._left = 0
        self._round = 0  # the updates that follow a backward, each of another optimizer
        self._shared: bool | None = None  # whether the first of this one was made; None where no backward began it
        self._round_in = _NOBODY  # the thread that makes them
        self.updated_in = -1  # the step in which the newest update was made
        self.has_optimizer = self.trains = False
        self._updates: MutableMapping[torch.optim.Optimizer, Count] = WeakIdKeyDictionary()
        # How many were made before each, and in which step it was made.
        self._made = WeakIdKeyDictionary()
        self._makes = 0
        self._within: tuple[int, int] = (0, 0)  # from which on they live within a step, and updates each makes at most
        self.on_back: Callable[[], object] = _nothing  # the step that was told so far was too high
        self._newest_counts: deque[Count] = deque(maxlen=_MOST)
        self._newest: tuple[Callable[[], object], Count] = (_nothing, Count(0, None))

    @property
    def within(self) -> bool:
        """Whether this is within a backward call: the updates that hooks make there are those of one step."""
        return self._in_backward and _graph_task() != -1

    @property
    def trained_by(self) -> str | None:
        """The class of the optimizer that made the newest update, perhaps gone by now; None where there was none."""
        return self._newest[1].kind

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` is being made: those that update first may be gone by its own first update."""
        self.has_optimizer = self.trains = True
        self._made[optimizer] = self._makes, self.step
        self._makes += 1

    def begins(self) -> None:
        """The first optimizer is being made, and no weight was changed yet: backward calls alone were no steps."""
        if self.step and not self.has_optimizer:
            self.step, self.updated_in, self._ticked = 0, -1, False
            self.on_back()

    def updates(self, optimizer: torch.optim.Optimizer) -> int:
        """Return how many updates ``optimizer`` has made."""
        known = self._updates.get(optimizer)
        return 0 if known is None else known.updates

    def own(self, optimizer: torch.optim.Optimizer | None, *, updated: bool = False) -> int | None:
        """Return the step by the count of ``optimizer`` alone where another one is ahead, else None.

        Also where it is ahead of the steps itself, for it trains beside them. ``updated``: it has just made the update
        of that step.
        """
        if optimizer is None or not self._updates:
            return None
        known = self._updates.get(optimizer)
        own = 0 if known is None else known.updates + known.before - updated
        step = self.updated_in if updated else self.step
        if known is not None and known.number == _BESIDE and own != step:
            return known.updates - updated
        return own if own < step else None

    def border(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Return the step to whose border ``optimizer`` comes.

        That is the step of the newest update where it makes its own behind that with no backward call between, and has
        made none since that: the gradients are of the same backward. How many it made before tells nothing then, for
        it may have left some out, or have begun later. Where no backward is called it must have made as many.
        """
        if self.micro_step or self.updated_in != self.step - 1 or self._in_backward or optimizer is None:
            return self.step
        known = self._updates.get(optimizer)
        if self._shared is None:
            behind = self.own(optimizer) == self.updated_in
        else:
            mine = self._round_in == _ident()  # what another thread trains beside is behind none of them
            behind = self._shared and mine and (known is None or known.round != self._round)
        return self.updated_in if behind else self.step

    def updated(self, optimizer: torch.optim.Optimizer, *, beside: bool = False) -> int:
        """Count one update and begin the next step's micro-steps; returns the step in which it was made.

        One made ``beside`` the training, in another thread, moves no step on.
        """
        newest, known = self._newest
        if newest() is not optimizer:
            known = self._of(optimizer)
            self._newest = weakref.ref(optimizer), known
        if not known.updates:
            self._take_back_tick(known)
            if not self.has_optimizer:
                self.has_optimizer, known.before = True, self.step
            self._go_back(known.number)
        step = self.border(optimizer)
        known.updates += 1
        known.thread = _ident()
        if beside:
            known.number = _BESIDE  # nothing goes on from what it has counted
        if beside or (known.number >= self._within[0] and known.updates <= self._within[1]):
            return self.step
        self.updated_in = step
        self._in_round(known)
        reached = max(self.step, known.updates + known.before)
        if self.within:
            self._reached, self._updated_there, self.hooked = max(self._reached, reached), True, True
        else:
            self.step, self.micro_step = reached, 0
        return self.updated_in

    def _in_round(self, known: Count) -> None:
        self._round_in = _ident()
        if self.micro_step:
            self._round, self._shared = self._round + 1, True
        elif known.round == self._round:  # a second time, of the same backward or of none
            self._round, self._shared = self._round + 1, None
        elif self._shared is False:
            self._shared = True
        known.round = self._round

    def left_out(self) -> None:
        """The backward calls so far are those of an update that was left out, if one was: another may follow."""
        if self.micro_step:
            self._round, self._shared, self.micro_step = self._round + 1, False, 0

    def is_of_this_thread(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this thread has made the newest update of it, and no other one is about to make the next."""
        known = self._updates.get(optimizer)
        return known is not None and known.thread == _ident()

    def taken(self, optimizer: object) -> None:
        """This thread drops gradients of what ``optimizer`` trains: where it made no update yet, none may ask it."""
        known = self._updates.get(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None
        if known is not None and known.thread != _ident():
            known.thread = _NOBODY

    def _of(self, optimizer: torch.optim.Optimizer) -> Count:
        known = self._updates.get(optimizer)
        if known is None:
            number, made_in = self._made.get(optimizer, (self._makes, self.step))
            known = Count(self._first(number, made_in), type(optimizer).__name__, number, self._makes)
            self._updates[optimizer] = known
            self._newest_counts.append(known)
        return known

    def other_thread(self, last: int | None) -> None:
        """Another thread than the ``last`` is taken for the one that trains: what counts are its own steps.

        The main one goes on from the step in which it was left.
        """
        main = threading.main_thread().ident
        if last == main:
            self._left = self.step
        self.step = self._left if _ident() == main else 0
        self.micro_step = 0
        self._shared = None
        self._newest_counts.clear()
        for optimizer in living(self._made):
            self._made[optimizer] = self._made[optimizer][0], self.step

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Stand where ``optimizer`` does, whose updates moved no step on so far."""
        known = self._of(optimizer)
        self.step = known.updates + known.before

    def _first(self, number: int, made_in: int) -> int:
        """Return where counting begins: where those before are gone (a fold, a phase, a restart) it goes on.

        Those before were made before it: what one that lives within a step has counted is not gone on from.
        """
        if self._updates:
            return 0
        return max(made_in, *(one.before + one.updates for one in tuple(self._newest_counts) if one.number < number), 0)

    def _take_back_tick(self, known: Count) -> None:
        """Its first update is of the step that the backward before it was counted as, for no optimizer existed then."""
        if self._ticked and self.step:
            self.step, self._ticked = self.step - 1, False
            known.before = min(known.before, self.step)

    def _go_back(self, number: int) -> None:
        """One that was made as that ``number`` updates for the first time: it may live within a step, as others did.

        So it is (a task of meta-learning, or an evaluation that trains) where an optimizer has made its first update
        just now, others were made and updated before that, and this one was made behind it. In phases that follow each
        other an optimizer that was made ahead makes many.
        """
        newest = tuple(self._newest_counts)  # another thread may be adding to them
        for one in [one for one in newest if one.updates == 1 and one.first <= number < _BESIDE]:
            within = [each.updates for each in newest if one.number < each.number < one.first]
            if within:
                self._within, self.step = (one.first, max(within)), one.updates + one.before
                self.on_back()

    def backward_begins(self) -> None:
        """A backward call begins in the thread that trains."""
        self._in_backward, self._updated_there = True, False
        self._ticked = False

    def backward_ended(self) -> bool:
        """Count a backward call; returns whether it made updates itself, in hooks: then its step is over with it."""
        self._in_backward = False
        if not self._updated_there:
            self.micro_step += 1
            return False
        self.step, self.micro_step = max(self.step, self._reached), 0
        return True

    def tick(self) -> None:
        """Count a step where no optimizer makes updates: a backward call, or all till it was known that none does."""
        self.step += max(self.micro_step, 1)
        self.updated_in = self.step - 1
        self.micro_step, self._ticked = 0, True


def _nothing() -> None:
    """Stand in for a weak reference to no optimizer."""


def global_step(optimizer: torch.optim.Optimizer | None, *, made: bool = False) -> int | None:
    """Return the step as told by the script or else by the optimizer's own state, None where neither tells.

    ``made``: the update of the step that is meant was made, and counts in that state already.
    """
    told = told_step()
    if told is not None or optimizer is None:
        return told
    for state in optimizer.state.values():
        value = state.get("step") if isinstance(state, dict) else None
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return int(value.item()) - made
        if isinstance(value, int | float):
            return int(value) - made
    return None

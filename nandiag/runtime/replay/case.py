"""The harmful step as it is handed over for a replay (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from nandiag.events import Looked, words
from nandiag.runtime.evidence.exchange.halves import HALVES
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.frames import Frame
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.lasting import OTHERWISE

NOT_RUN = frozenset({"refused", "failed"})
WITHIN = "between_evaluations"


class Broken(NamedTuple):
    """The call of a root module that the script ends in.

    ``speaks`` tells the tensors that an error of it speaks of, among them what the op was given that raised it.
    """

    entry: Entry
    speaks: Callable[[BaseException, Sequence[Tensor]], Sequence[Tensor]]


class Evaluated(NamedTuple):
    """A step of an optimizer, behind an evaluation of its closure at which the ``weights`` were finite.

    ``kind`` is the optimizer's class, ``frames`` are those in which the script calls its step.
    """

    weights: Sequence[Tensor]
    kind: str
    frames: tuple[Frame, ...]

    def holds(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is one of the weights, or a view of one."""
        return storage(tensor) in {storage(one) for one in self.weights}

    def told(self, looked: Looked) -> Looked:
        """Return ``looked``, which met such a weight bad: the optimizer has written into it since."""
        return replace(looked, phase="optimizer", facts={**looked.facts, WITHIN: self.kind})


@dataclass(frozen=True, slots=True)
class Case:
    """The harmful step as it is handed over: what the border saw, and with whom it is to be run again.

    ``ends``: the run ends after the replay in any case.
    ``spoken``: what the error that the script ends by speaks of.
    ``broken``: the call of a root module that this error was raised in, which is none of the tape's.
    ``behind``: the weights were written into behind the last update, and are looked at for the last time.
    ``handed``: this rank is about to give to others what is ``spoken`` of; there need be no harm at all.
    ``apart``: what models and backward calls gave is taken as it is, where it is still there, and they are not called.
    ``asks``: the other ranks are asked for their parts of the sharded weights, for none of them takes part.
    ``within``: hooks have made the weights bad within the step's own backward.
    ``zeros``: what the script's own writes made bad is stood in for by zeros, not by numbers of its size.
    ``seconds``: so long it may take at most, for nothing is known to be wrong.
    ``forgets``: what the script keeps by key and is bad is not there, so that it is computed again, but for what each
    step writes there, by the ``id`` of its table and its key.
    ``single``: nothing says that the other ranks end in this step as well.
    ``shares``: all ranks exchange the gradients once more that they have exchanged behind the backward.
    ``by_hand``: no optimizer made the updates, so that the tape begins with the one before this step.
    ``factor``: the backward is run without this number, by which the script multiplies its loss.
    ``left``: the script has ended by itself before an update could be made.
    ``evaluated``: an optimizer's step is under way, or has raised, behind an evaluation of its closure.
    ``follows``: the optimizer makes its update behind another's of this step, with no backward between.
    ``scaled``: it is run with the loss ``scale`` of a GradScaler, which has 1 in its place else.
    """

    step: int
    parameters: list[Tensor]
    joint: bool
    scale: Tensor | None = None
    suspects: tuple[Tensor, ...] = ()
    weights_were_finite: bool = False
    gradients: tuple[Tensor, ...] = ()
    unfinished: bool = False
    by_hand: bool = False
    within: bool = False
    ends: bool = False
    spoken: tuple[Tensor, ...] = ()
    broken: Broken | None = None
    behind: bool = False
    handed: bool = False
    apart: bool = False
    asks: bool = False
    single: bool = False
    zeros: bool = False
    shares: bool = False
    seconds: float = math.inf
    forgets: frozenset[tuple[int, object]] | None = None
    factor: float = 1.0
    left: bool = False
    scaled: bool = False
    evaluated: Evaluated | None = None
    follows: bool = False

    @property
    def seen_finite(self) -> list[Tensor]:
        """The weights that are known to have been finite behind the update before."""
        evaluated = [] if self.evaluated is None else self.evaluated.weights
        return [*(self.parameters if self.weights_were_finite else []), *evaluated]

    @property
    def may_be_joined(self) -> bool:
        """Whether all ranks may run it again together though none was told that all would.

        What hooks that communicate leave in weights is as bad on all ranks; where models communicate, so is the loss,
        and it is what all of them end on, before their backward or in it (anomaly mode). Where no optimizer makes the
        updates none can tell the others at a border.
        """
        left = (self.unfinished or self.left) and not self.handed and not self.single
        return (self.within or left or self.by_hand) and self.ends and not self.joint

    @property
    def instead(self) -> dict[int, Tensor]:
        """What stands in for tensors, by their ``id``: 1 for the loss scale, by which a replay is not to overflow.

        Of one that is ``scaled`` it is the scale as it is by now: a scaler writes into it behind an update.
        """
        if self.scale is None:
            return {}
        return {id(self.scale): self.scale.clone() if self.scaled else torch.ones_like(self.scale)}

    def nothing(self, outcome: str, reason: str) -> Looked:
        """Return that running the step again showed no origin, and why."""
        return Looked(outcome=outcome, method="replay", step=self.step, reason=reason)

    def dated(self, looked: Looked) -> Looked:
        """Return ``looked`` with the step before where an update by hand made it, which this step's numbers show."""
        here = self.by_hand and self.step > 0 and not self.weights_were_finite and not self.within
        if not here or not is_made_here(looked) or looked.phase != "optimizer":
            return looked
        return replace(looked, facts={"made_at_step": self.step - 1, **looked.facts})

    def is_told(self, looked: Looked) -> bool:
        """Whether what a look found is worth a word: not where nothing else says that there is harm at all.

        What the script writes down as a number that is not finite, at its end, it means.
        """
        found = looked.outcome == "found"
        if self.behind and found and looked.site is not None:
            return words.laid(looked.site.op or "", looked.inputs, looked.facts) is None
        return found or not self.unfinished


def on_reconstructed(entries: Iterable[Entry], looked: Looked, doubts: Container[str], *, spoiled: bool) -> Looked:
    """Return ``looked``, marked where the step was not run again on what it had been run on.

    ``spoiled``: weights that were bad had others in their place. Where a copy of what a module holds stood in for it,
    and that is reached in other ways too, what was written by the one was not read by the other. Of what is in
    ``doubts`` and came otherwise out of an earlier part the numbers are those that were used, but not in its backward.
    """
    spoiled = spoiled or (looked.phase == "backward" and OTHERWISE in doubts)
    split = looked.outcome == "found" and looked.phase != "data" and any(one.split for one in entries)
    if looked.method != "replay" or not (spoiled or split):
        return looked
    return replace(looked, facts={**looked.facts, "reconstructed": True, **({"split": True} if split else {})})


def is_made_here(looked: Looked) -> bool:
    """Whether an op was found that made it."""
    return (looked.outcome, looked.source) == ("found", "op")


def timed(looked: Looked, seconds: float) -> Looked:
    """Return what a look showed with the time that it took, and with what its step summed up in float16."""
    return replace(HALVES.with_told(looked), seconds=round(seconds, 4))

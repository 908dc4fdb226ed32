"""Who looks for the origin of harm: what ``--level`` watches all the time, the replay, and who takes over (worker).

Where a replay does not find it, ops are watched from the next step on, so that the next harm is seen as it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Event, Harm, Looked, Note, words
from nandiag.runtime.guard import guarded
from nandiag.runtime.inject.late import attach_untrained
from nandiag.runtime.levels.calls import listen
from nandiag.runtime.levels.modules import ModuleWatch
from nandiag.runtime.levels.ops.live import Live
from nandiag.runtime.levels.untrained import Untrained
from nandiag.runtime.look.weights import Began
from nandiag.runtime.memory.known.masks import Masks
from nandiag.runtime.numeric.read import Read
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.together.agreement import FOUND, Agreement
from nandiag.runtime.together.census import has_peers
from nandiag.runtime.watch.clock import Clock
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.response import Level

MOST_STEPS = 1000
# What may be told to nobody must not hold up a run: in steps, and in seconds where these are short.
_STEPS, _SECONDS = 10, 3.0
_MASK = "-Inf"


class Looker:
    """Has a harmful step looked at; tells what ``level`` (``step``, ``module`` or ``op``) watches where steps end."""

    def __init__(
        self,
        examiner: Examiner,
        capture: Capture,
        level: str,
        clock: Clock,
        settle: Callable[..., None],
    ) -> None:
        self.examiner = examiner
        self._capture = capture
        self._clock = clock
        self._settle = settle
        self._agreement: Agreement = examiner.agreement
        self._untrained = Untrained(self._explain_output, self._tell_output)
        self.live = Live(capture, self._root_ended)
        self.modules = ModuleWatch(lambda: clock.micro_step, self._root_ended) if level == "module" else None
        self.shown_before: Callable[[Case], Looked | None] = _nothing
        self._level = level
        self._missed: int | None = None
        self._since: int | None = None
        if self.modules is not None:
            listen(self.modules, guarded("modules")(lambda: not capture.off))
        elif level == "op":
            self.live.start()

    @property
    def seeks(self) -> bool:
        """Whether ops are watched because an earlier harm could not be explained, and no later one has been yet."""
        return self._since is not None

    @property
    def unfinished(self) -> bool:
        """Whether a forward was seen live that no backward has followed."""
        return self.live.here and self.live.unfinished

    # ------------------------------------------------------------------ harm

    def examine(self, case: Case) -> Looked | None:
        """Look at a harmful step; returns what was found, and has written it down."""
        if self.live.here:
            self.examiner.decline(case)
            self._found_by_any(case, None)
            bad = list(case.spoken or case.suspects) if case.spoken or (case.suspects and not case.gradients) else None
            seen = self.live.explain(case, bad)
            seen = replace(seen, phase="optimizer") if bad and case.weights_were_finite else seen
            return self._saw(seen) if case.is_told(seen) or case.unfinished else seen
        if (before := self.shown_before(case)) is not None:
            return self._saw(before)
        looked = self.examiner.examine(case)
        self._may_take_over(case, looked)
        if self.modules is None or (looked is not None and looked.outcome == "found"):
            return looked
        named = self.modules.explain(case.step)
        return looked if named is None else self._saw(named)

    def decline(self, case: Case) -> None:
        """What there is to see of a harmful step was seen before; where all ranks are to look, the others ask."""
        if case.joint:
            self.examiner.decline(case)
            self._found_by_any(case, None)

    def examine_checked(self, case: Case) -> Looked | None:
        """Look at a backward that torch's own NaN check has ended; returns what was found, and has written it down."""
        if not self.live.here:
            return self.examine(case)
        looked = self.live.explain_nan(case)
        return self._saw(looked) if looked.outcome == "found" else looked

    def examine_handed(self, tensor: Tensor, seconds: float | None = None) -> Looked | None:
        """Look at how this rank made what it hands to others, in ten steps' time; nobody is told of it here."""
        at, step = (tensor,), self._clock.step
        seconds = max(_SECONDS, _STEPS * self._capture.step_seconds) if seconds is None else seconds
        case = Case(step, [], joint=False, unfinished=True, spoken=at, suspects=at, handed=True, seconds=seconds)
        return self.live.explain(case, [tensor]) if self.live.here else self.examiner.examine_handed(case)

    def asks(self) -> int | None:
        """Return how often the script asked something of its numbers behind a forward; None where that is not seen."""
        seen = not (self._capture.narrow or self._capture.window.shut or self.live.here)
        return self._capture.window.asks if seen else None

    def examine_quietly(self, case: Case) -> Looked | None:
        """Look at a step of which it is not known yet whether it is harmful; nobody is told of it here."""
        return None if self.live.here else self.examiner.examine_handed(replace(case, handed=True))

    def tell(self, looked: Looked) -> None:
        """Write down what a quiet look has found."""
        self._saw(looked)

    def tells(self, masks: Masks) -> None:
        """Have ``masks`` ask which -inf was laid down where the loop's own calls do not show it."""
        masks.seen = guarded("levels")(lambda tensor: self.live.here and self.live.lays(tensor))
        masks.again = guarded("levels")(self._lays_again)
        masks.unseen = guarded("levels")(self._is_unseen)

    def _is_unseen(self, optimizer: torch.optim.Optimizer, tensor: Tensor) -> bool:
        """Whether the loop may have laid -inf into a weight where its calls are too many to see, and no update did."""
        if self.live.here or not self._capture.narrow:
            return False
        return bool(self.examiner.is_made_otherwise(optimizer, tensor, self._clock.step))

    def _lays_again(self, tensor: Tensor) -> bool:
        """Whether the step lays -inf into ``tensor`` as it is where it is run once more."""
        if self.live.here:
            return False
        case = Case(self._clock.step, [], joint=False, unfinished=True, suspects=(tensor,), handed=True)
        looked = self.examiner.examine_handed(case)
        site = looked.site if looked is not None and (looked.outcome, looked.source) == ("found", "op") else None
        return (
            site is not None and looked is not None and words.laid(site.op or "", looked.inputs, looked.facts) == _MASK
        )

    def examine_update(
        self, optimizer: torch.optim.Optimizer, bad: dict[str, Tensor], step: int, *,
        first: Began | None, ends: bool,
    ) -> None:  # fmt: skip
        """Look at an update that left the ``bad`` parameters, by name, behind; ``first``: as it is told there."""
        births = self._capture.births
        if births is not None and births.is_of_bad_state(optimizer, bad.values()):
            self._saw(Looked("refused", "replay", step, reason="the optimizer's state was bad before this update"))
        elif not self.live.here:
            self.examiner.examine_update(optimizer, bad, step, first=first, ends=ends)
        else:
            looked = self.live.explain(Case(step, [], joint=False), list(bad.values()))
            names = {} if "beside_update" in looked.facts else {"parameters": list(bad)[:8]}
            self._saw(replace(looked, facts={**looked.facts, **names}))

    def _saw(self, looked: Looked) -> Looked:
        RECORDER.emit(looked, urgent=True)
        if looked.outcome == "found":
            RECORDER.follows(self._explained)
        return looked

    def _explained(self) -> None:
        self._since = None

    def _may_take_over(self, case: Case, looked: Looked | None) -> None:
        found = self._found_by_any(case, looked)
        if looked is None or case.unfinished or self._capture.elsewhere:
            return
        if not case.joint and looked.outcome == "finite" and looked.facts.get("complete") is not False and has_peers():
            return  # damage that it received, as far as it can tell: the rank that made it has its own look
        if case.joint and not self._agreement.possible:
            return  # it broke off: what the other ranks do from now on is not known
        if not found:
            RECORDER.follows(partial(self._misses, case.step))

    def _misses(self, step: int) -> None:
        self._missed = step

    def _found_by_any(self, case: Case, looked: Looked | None) -> bool:
        """Whether the origin is found; in a joint case all ranks ask: they watch ops together, or none does.

        A rank that did not take part has another way to look, or has looked often enough: no reason to begin.
        """
        found = looked is None or looked.outcome == "found"
        return self._agreement.any(flag=found, what=FOUND) if case.joint else found

    # ------------------------------------------------------------------ borders

    def backward_begins(self, roots: list[Tensor]) -> None:
        """A backward call from ``roots`` begins."""
        if self.live.here:
            self.live.backward_begins(roots)

    def backward_ended(self, micro_step: int) -> None:
        """It ended; ``micro_step`` begins."""
        if self.live.here:
            self.live.backward_ended(micro_step)

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to make its update."""
        if self.live.here:
            self.live.update_begins()
            return
        births = self._capture.births
        if self._capture.window.numbers or (births is not None and births.read):
            self.examiner.examine_rates(optimizer, self._clock.step)
            if births is not None:
                self._note_numbers(births.read)
        if self._capture.window.stored and births is not None and births.stored is not None:
            births.stored.look()

    @guarded("numbers")
    def _note_numbers(self, read: Read) -> None:
        """Bad numbers that the script has read in this step may go into an op some steps further on."""
        for number, tensor, maker in self._capture.window.numbers:
            look = partial(self.examiner.examine_number, self._clock.step, tensor, apart=True)
            read.in_step(number, maker, look)

    def step_ends(self, step: int) -> None:
        """A step is over, ``step`` begins."""
        if self.modules is not None:
            self.modules.step_ends(step)
        if self.live.here:
            self.live.step_ends(step)
            if self._since is not None and step - self._since >= MOST_STEPS:
                self._give_up(step)
        elif self._missed is not None and not self._capture.elsewhere:
            self._take_over(step)

    def _take_over(self, step: int) -> None:
        missed, self._missed, self._since = self._missed, None, step
        self.live.start()
        self.live.step_ends(step)
        RECORDER.emit(Note(f"From step {step} on every op was watched: step {missed} had not shown the origin."))

    def _give_up(self, step: int) -> None:
        self._since = None
        self.live.stop()
        RECORDER.emit(Note(f"From step {step} on ops are no longer watched: {MOST_STEPS:,} steps brought no new harm."))

    # ------------------------------------------------------------------ scripts that train nothing

    @guarded("levels")
    def _root_ended(self, module: nn.Module, output: Any) -> None:
        if self._clock.trains:
            return
        attach_untrained()
        self._untrained.root_ended(module, output)
        if not torch.is_grad_enabled():
            self.step_ends(self._untrained.calls)
            RECORDER.pulse(self._untrained.calls)

    def _explain_output(self, step: int, bad: list[Tensor]) -> Looked | None:
        if self.modules is not None:
            return self.modules.explain(step)
        return self.live.explain(Case(step, [], joint=False), bad)

    def _tell_output(self, harm: Harm, looked: Looked | None) -> None:
        border = Border([harm], Level.SEEN)
        self._settle(None, border, examine=lambda _: None if looked is None else RECORDER.emit(looked, urgent=True))

    def is_rank(self, *, would_train: bool = False) -> bool:
        """Whether this process is a rank, as the script ends: one that only called models is found out to be now.

        So is one that ``would_train``, had it not ended.
        """
        if RECORDER.attached:
            return True
        judged = self._level != "step" and (self._untrained.calls or (self.live.here and self.live.last_number()))
        return attach_untrained(ends=would_train or bool(judged))

    def script_ends(self) -> None:
        """The script ends: one that has trained nothing is judged by what its models, or it itself, gave out."""
        self.examiner.script_ends = True
        if not self._clock.trains and self._level != "step":
            self._untrained.ends(self.live.last_number() if self.live.here else None)
            self._clock.step = max(self._clock.step, self._untrained.calls)

    def last_words(self) -> Event | None:
        """Return what is to be kept of a run that ends."""
        return self.modules.maxima.event() if self.modules is not None else None


def _nothing(_: Case) -> None:
    """Stand in for nobody who has seen a case before."""

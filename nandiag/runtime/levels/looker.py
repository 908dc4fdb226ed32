"""Who looks for the origin of harm: the replay, and what ``--level`` had watched all the time (worker)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nandiag.events import Event, Looked
from nandiag.runtime.levels.calls import listen
from nandiag.runtime.levels.modules import ModuleWatch
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.examine import Examiner
from nandiag.runtime.tape.capture import Capture


class Looker:
    """Has a harmful step looked at; tells what ``level`` (``step``, ``module`` or ``op``) watches where steps end."""

    def __init__(self, examiner: Examiner, capture: Capture, level: str, micro_step: Callable[[], int]) -> None:
        self._examiner = examiner
        self._capture = capture
        self.modules = ModuleWatch(micro_step) if level == "module" else None
        if self.modules is not None:
            listen(self.modules.around, lambda: capture.off or RECORDER.mute)

    def examine(self, case: Case) -> Looked | None:
        """Look at a harmful step; returns what was found, and has written it down."""
        looked = self._examiner.examine(case)
        if self.modules is None or (looked is not None and looked.outcome == "found"):
            return looked
        seen = self.modules.explain(case.step)
        if seen is None:
            return looked
        RECORDER.emit(seen, urgent=True)
        return seen

    def examine_update(
        self, optimizer: torch.optim.Optimizer, bad: dict[str, Tensor], step: int, *, first: bool
    ) -> None:
        """Look at an update that left the ``bad`` parameters, by name, behind."""
        self._examiner.examine_update(optimizer, bad, step, first=first)

    def step_ends(self, step: int) -> None:
        """A step is over, ``step`` begins."""
        if self.modules is not None:
            self.modules.step_ends(step)

    def last_words(self) -> Event | None:
        """Return what is to be kept of a run that ends."""
        return self.modules.maxima.event() if self.modules is not None else None

"""What to do about harm: go on, leave the update out, or stop all ranks at this border (worker)."""

from __future__ import annotations

import threading
from enum import IntEnum

from nandiag.events import Harm, Note, Skipped, Stopping
from nandiag.runtime.inject import ending
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.together.census import has_peers


class Level(IntEnum):
    """How bad it is, the same on all ranks after agreement."""

    NONE = 0
    SEEN = 1  # a loss, buffer or state is bad, the weights are not touched by it yet
    DOOMED = 2  # the update to come would make weights non-finite
    LOST = 3  # weights are non-finite


class Action(IntEnum):
    """What to do at this step border."""

    GO = 0
    SKIP = 1
    STOP = 2


def decide(policy: str, level: Level) -> Action:
    """Return what ``policy`` (auto, stop, continue or skip) asks for at ``level``."""
    if level is Level.NONE or policy == "continue":
        return Action.GO
    if policy == "stop" or (policy == "auto" and level >= Level.DOOMED):
        return Action.STOP
    if policy == "skip" and level is not Level.LOST:
        return Action.SKIP
    return Action.GO


class Response:
    """Carries out the policy, and says so in the rank file first."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self._refused = False

    def act(self, level: Level, step: int, reason: str) -> Action:
        """Decide; raises AnomalyStop when the answer is to stop."""
        action = decide(self.policy, level)
        if action is Action.STOP and not self._stop(step, reason):
            return Action.GO
        if action is Action.SKIP:
            RECORDER.emit(Stopping(step=step, policy=self.policy, action="skip", reason=reason))
        elif self.policy == "skip" and level is Level.LOST and not self._refused:
            self._refused = True
            RECORDER.emit(
                Note(f"Step {step} was not left out: the weights are non-finite already, skipping cannot mend them.")
            )
        return action

    def skipped(self, skip: Skipped) -> None:
        """An update was left out by a scaler; raises AnomalyStop when so many were that none is made any more.

        The ranks of DDP and FSDP see the same skips: what a scaler looks at was reduced over all of them before.
        """
        if (self.policy == "stop" and skip.collapsed) or (self.policy == "auto" and skip.hopeless):
            self._stop(skip.step, f"no update was made in {skip.in_a_row} steps in a row")

    def _stop(self, step: int, reason: str) -> bool:
        """Raise AnomalyStop; a run whose stop cannot be written down goes on, for it would look like a good end."""
        alone = not has_peers()
        stopping = Stopping(step=step, policy=self.policy, action="stop", reason=reason, alone=alone)
        if not RECORDER.emit(stopping, urgent=True):
            return False
        ending.stopped()
        RECORDER.mark_stopped()
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(0)  # threading prints the traceback of any subclass
        raise AnomalyStop(f"nandiag stopped the run at step {step}: {reason}")


def reason_of(harms: list[Harm]) -> str:
    """Return the worst of the harms of a border in a few words."""
    worst = harms[-1]
    names = ", ".join(str(tensor.name) for tensor in worst.tensors[:2])
    return f"non-finite {worst.what.replace('_', ' ')} ({names})"

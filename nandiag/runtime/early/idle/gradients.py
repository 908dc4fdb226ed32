"""Gradients that are exactly 0, all of them, in step after step, while the loss is not (worker).

A hand-made clip by a norm that is infinite multiplies all by 0, as do a model without a living unit and a loss that
underflows. The norm of the gradients is read anyway; that they are 0 exactly is asked only where it was 0 for long.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from nandiag.runtime.early.warner import Step, Warner
from nandiag.runtime.look.finite import local, quiet

# A loss so far below the largest may have none but gradients that round to 0: what was to be learnt is learnt.
_LEARNT = 1e-3
_PATIENT = 10


class ZeroGradients:
    """Counts updates in a row, of all optimizers together, by gradients of 0: of several one may rest for long."""

    def __init__(self, warner: Warner) -> None:
        self._warner = warner
        self._most = warner.limits.zero_gradients
        self._run = self._due = 0
        self._times = 1  # twice as large each time that it was told: a phase may rest again and again
        self._largest = 0.0
        self._ever = False  # gradients were seen that were not 0

    def moved(self, loss: float) -> None:
        """Gradients were not 0; ``loss`` is the largest of the losses that they are of."""
        self._run, self._ever = 0, True
        if self._largest < loss < math.inf:
            self._largest = loss

    def border(self, optimizer: Any, step: Step, norm: float | None) -> None:
        """An optimizer is about to make a step by gradients of ``norm``, as the update gets them."""
        loss = abs(step.loss) if step.loss is not None else 0.0
        if norm != 0.0 or optimizer is None or not self._most:
            self._run = 0
            if norm:
                self.moved(loss)
            return
        self._largest = max(self._largest, loss) if loss < math.inf else self._largest
        if step.lr == 0.0 or not _LEARNT * self._largest < loss < math.inf:
            self._run = 0
            return
        self._run += 1
        if self._run == 1:
            # Where none was ever there, nothing may be to be learnt yet: no reward, a term at its floor.
            self._due = self._most if self._ever or step.grad_norm else _PATIENT * self._most
        if self._run < self._times * self._due:
            return
        self._times *= 2
        if _are_zero(optimizer):
            facts: dict[str, object] = {
                "steps": self._run, "loss": step.loss, "optimizer": type(optimizer).__name__, "before": step.grad_norm,
            }  # fmt: skip
            self._warner.say(("gradients_zero", facts), step.step)


def _are_zero(optimizer: Any) -> bool:
    """Whether each gradient is 0 throughout, of which the norm's squares say little; reads the host."""
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    if not any(one.requires_grad for one in weights):
        return False  # they are meant to rest
    with quiet():
        held = [data for one in weights if one.grad is not None and (data := local(one.grad)) is not None]
        devices = {one.device for one in held}
        found = [torch.stack([one.any() for one in held if one.device == device]).any() for device in devices]
        return bool(found) and not any(map(bool, found))

"""The harmful step as it is handed over for a replay (worker)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """The harmful step as it is handed over: what the border saw, and with whom it is to be run again.

    ``ends``: the run ends after the replay in any case.
    ``spoken``: what the error that the script ends by speaks of.
    ``by_hand``: no optimizer made the updates, so that the tape begins with the one before this step.
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
    ends: bool = False
    spoken: tuple[Tensor, ...] = ()

"""The update that a script leaves out in its last turn, for its own loss scale: as it did before, and no harm (worker).

A scale that is sought overflows now and then, and the next turn's update shows nothing of it. Behind the last turn no
update comes: the gradients are there as they were left.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked
from nandiag.events.kinds import MANY_IN_A_ROW
from nandiag.runtime.frames import Frame, places_on
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.replay.case import NOT_RUN
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import BACKWARD
from nandiag.runtime.tape.packed.words import Given, Made
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.told.answers.asked import Asked
from nandiag.runtime.watch.told.answers.by_text.passed_over import leads_on

if TYPE_CHECKING:
    from nandiag.runtime.watch.sentinel import Sentinel

# Without a look a factor of this size is taken for a loss scale; and the largest number of half precision.
_LARGE, _HALF = 128.0, 65504.0
_FRAMES = 6


def may_be_skip(sentinel: Sentinel, asked: Asked, border: Border) -> bool:
    """Whether the script, which ends by itself, left out an update for its gradients, and few of them in a row.

    It asked behind its last backward call, and the condition leads on to the next turn, or round the update.
    """
    gradients_alone = bool(border.harms) and all(harm.what == "gradient" for harm in border.harms)
    if not gradients_alone or sentinel.clock.updated_in < 0 or asked.turns_behind >= MANY_IN_A_ROW:
        return False
    asks = (map(Frame._make, places_on(one, _FRAMES)[0]) for one in asked.behind)
    return any(map(leads_on, asks))


def is_of_scale(looked: Looked | None, tape: Tape) -> bool:
    """Whether the scale alone made them infinite, by what a replay has ``looked`` at; else it is one of some size."""
    known = {} if looked is None else looked.facts
    factor, largest = known.get("loss_factor"), known.get("float64_absmax")
    if isinstance(factor, float) and isinstance(largest, float):
        return abs(factor) > 1.0 and largest / abs(factor) <= _HALF
    unknown = looked is None or looked.outcome in NOT_RUN or looked.source == "received"
    return unknown and _factor(tape) >= _LARGE


def _factor(tape: Tape) -> float:
    """Return the number that the newest loss of a backward call was multiplied by, as its call has it, else 1."""
    calls = [entry for entry in tape.entries if entry.kind == BACKWARD][-1:]
    makers = [word.entry for entry in calls for word in entry.words if type(word) is Made]
    products = [maker for maker in makers if "mul" in maker.name]
    with quiet():
        found = [_number(word) for maker in products for word in (*maker.args, *maker.words)]
    return max((abs(one) for one in found if math.isfinite(one)), default=1.0)


def _number(word: object) -> float:
    if type(word) in (int, float):
        return float(word)  # type: ignore[arg-type]
    tensor = word.get() if type(word) is Given else None
    plain = isinstance(tensor, Tensor) and tensor.numel() == 1 and not tensor.requires_grad
    return float(tensor) if plain and tensor is not None else 1.0

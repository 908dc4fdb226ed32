"""A step that was finite when it was run again, run once more on other terms (worker).

Something may have stood in for what had made it bad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nandiag.events import Looked
from nandiag.runtime.replay.case import Case, is_made_here
from nandiag.runtime.together.agreement import VOTE, Agreement

Run = Callable[[Case], Looked]


def on_zeros(case: Case, looked: Looked, run: Run) -> Looked:
    """Return ``looked``, or what shows when zeros stand in for weights that the script's own writes made bad."""
    if looked.outcome != "finite" or case.joint or looked.facts.get("reconstructed") is not True:
        return looked
    again = run(replace(case, zeros=True))
    return again if is_made_here(again) else looked


def at_scale(case: Case, looked: Looked, run: Run, agreement: Agreement) -> Looked:
    """Return ``looked``, or what the loss scale of a GradScaler alone makes: without it the step is finite.

    The scaler would have left such an update out; where it is asked after the script has used the gradients, or ended
    by them, they are harm. Of a joint replay all ranks must have seen nothing, and all run it again where one scales.
    """
    if case.handed or not _is_due(case, looked, agreement):
        return looked
    again = run(replace(case, scaled=True))
    if case.scale is None or not is_made_here(again):
        return looked
    return replace(again, facts={**again.facts, "scale_alone": float(case.scale), "script_ended": case.left})


def _is_due(case: Case, looked: Looked, agreement: Agreement) -> bool:
    ours = _FOUND if looked.outcome != "finite" else _NOTHING if case.scale is None else _SCALED
    return (agreement.most(ours, VOTE) if case.joint else ours) == _SCALED


_NOTHING, _SCALED, _FOUND = range(3)

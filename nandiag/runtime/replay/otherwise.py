"""What a step, or an update, shows when it is run again otherwise than at first (worker)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.guard import Refused
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.memory.overwritten import Overwritten
from nandiag.runtime.replay.case import Case, is_made_here
from nandiag.runtime.replay.ready import as_before_set_anew
from nandiag.runtime.replay.update.again import look_again
from nandiag.runtime.tape.calls.strangers import is_not_all_kept
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.traceless import traceless

_SET_ANEW = "what modules have set anew was not as it had been"
_NOT_KEPT = "of all that modules hold or reach it is not known that it was as it had been"


def is_finite_again(capture: Capture, optimizer: torch.optim.Optimizer, bad: Tensor, step: int) -> bool:
    """Whether all of the update that is to have made what is ``bad`` is finite when it is made again."""
    try:
        with traceless(capture, [], [], ends=False), torch.no_grad():
            looked = look_again(optimizer, {"": bad}, step, Overwritten(ends=False), first=None)
    except Refused:
        return False
    return looked.outcome == "finite" and looked.facts.get("complete") is True


def as_set_anew(
    run: Callable[[Case], Looked], cases: tuple[Case, Case], entries: list[Entry], looked: Looked, known: Any
) -> Looked:
    """Return ``looked``, or what shows when modules begin with what they held before they set it anew, or kept it.

    A call that replaces a buffer, or computes a table once, is run again on what it has put there. The second of the
    ``cases`` is the same, but forgets what the newest run wrote into dicts; ``known`` are habits of calls.
    """
    case, forgetful = cases
    if case.joint or is_made_here(looked) or looked.outcome not in {"found", "finite"}:
        return looked
    with quiet():
        anew = as_before_set_anew(entries, known)
    tries = [case] if anew else []
    tries += [forgetful] if case.ends and looked.source == "outside" else []
    for one in tries:
        again = run(one)
        if is_made_here(again):
            return replace(again, facts={**again.facts, "reconstructed": True, "forgot": one.forgets is not None})
    reason = "; ".join([looked.reason or "", _SET_ANEW if anew else _NOT_KEPT])
    doubtful = (anew or is_not_all_kept(entries)) and looked.outcome == "finite"
    return replace(looked, facts={**looked.facts, "complete": False}, reason=reason) if doubtful else looked

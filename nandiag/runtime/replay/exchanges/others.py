"""Gradients that the script itself exchanges: a replay by one rank has its own part of them (worker).

What is found behind such an exchange may be no fault of this rank: a norm that is 0 without the others' part is not 0
with it. So the step is run once more with a number in the place of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nandiag.events import Looked
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.replay.case import Case, is_made_here
from nandiag.runtime.replay.rerun import Rerun

_OTHERS = 1.0
_OWN = "own_gradients"


def with_own(looked: Looked, op: Op, result: Rerun) -> Looked:
    """Return ``looked``, which found ``op``, marked where that ran on gradients that had the others' part in them."""
    if result.mingled is None or op.index <= result.mingled:
        return looked
    return replace(looked, facts={**looked.facts, _OWN: True})


def against_others(case: Case, looked: Looked, replay: Callable[[Case], Looked]) -> Looked:
    """Return what was found behind an exchange, with whether it breaks so whatever the other ranks put in.

    What goes in there as well, number for number, hangs on nothing of theirs: it was made as it is. ``without_peers``
    is ``any`` where it breaks all the same, and ``zeros`` where it was finite.
    """
    if looked.facts.get(_OWN) is not True:
        return looked
    again = None if case.joint else replay(replace(case, others=_OTHERS))
    broke = again is not None and is_made_here(again) and again.site == looked.site
    if broke and again is not None and again.inputs == looked.inputs:
        return replace(looked, facts={key: value for key, value in looked.facts.items() if key != _OWN})
    told = {} if again is None or not (broke or again.outcome == "finite") else {"without_peers": _NAMES[broke]}
    return replace(looked, facts={**looked.facts, "reconstructed": True, **told})


_NAMES = {True: "any", False: "zeros"}

"""The ranks that a run ends on in one step: they may run it again together, though none was told to (worker)."""

from __future__ import annotations

from torch import nn

from nandiag.runtime.replay.unfinished import groups_of
from nandiag.runtime.together.census import all_come
from nandiag.runtime.together.shadows import possible

_PATIENCE, _STEPS = 5.0, 20.0


def all_end_in(step: int, roots: list[nn.Module], seconds: float, *, within: bool) -> bool:
    """Whether all ranks come to run the step again that they end in; waits for them, bounded.

    ``seconds`` is how long a step takes: where a rank may not come, it is waited for 20 steps, and at least 5 s.
    ``within``: hooks of its backward communicate, so all ranks have met the same harm. In a forward of ``roots`` a rank
    may end alone. FSDP2's weights are asked for instead (:mod:`nandiag.runtime.together.shards`); where ranks could not
    be told that one has failed in the replay nobody is waited for, for no policy is about to end them.
    """
    if within:
        return all_come(f"within/{step}")
    return possible() and not groups_of(roots) and all_come(f"left/{step}", max(_PATIENCE, _STEPS * seconds))

"""The ranks that a run ends on in one step: they may run it again together, though none was told to (worker)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from nandiag.events import Looked
from nandiag.runtime.collectives.wraps import uncounted
from nandiag.runtime.replay.case import Case
from nandiag.runtime.replay.exchanges.mail import MAIL
from nandiag.runtime.replay.trace.tracer import Tracer
from nandiag.runtime.replay.unfinished import can_break_off, groups_of
from nandiag.runtime.together.census import all_come
from nandiag.runtime.together.shadows import possible
from nandiag.runtime.together.shards import SHARDS
from nandiag.runtime.together.vigil import together

_PATIENCE, _STEPS = 5.0, 20.0
# Ranks that see the same harm come to the same border; whom the others wait for in a collective may not wait for long.
_LONGEST = 30.0


def in_company(case: Case, roots: list[nn.Module], seconds: float, replay: Callable[[Case], Looked]) -> Looked:
    """Return what ``replay`` shows of ``case``, a step of so many ``seconds``: of this rank or of all together.

    They come together where the step communicates. Under FSDP1 that is to be known before: a replay of this rank alone
    would leave its weights half gathered.
    """
    if not case.may_be_joined:
        return replay(case)
    joint = replace(case, joint=True)
    if not (case.within or can_break_off(roots)):
        return replay(joint if _all_end_in(case, roots, seconds) else case)
    looked = replay(case)
    if not looked.facts.get("alone"):
        return looked
    return replay(joint) if _all_end_in(case, roots, seconds) else _as_far_as_alone(case, roots, looked, replay)


@contextlib.contextmanager
def met(case: Case, roots: list[nn.Module], tracer: Tracer, seconds: float) -> Iterator[Callable[[], None]]:
    """Meet the other ranks where the replay is a joint one; yields what waits until all are through with it."""
    if not case.joint:
        with uncounted(MAIL.of_step()), SHARDS.gathered(roots) if case.asks else contextlib.nullcontext():
            yield lambda: None  # there is no other rank to wait for
        return
    with together(case.step, seconds) as joined:
        tracer.instead = joined.instead
        yield joined.through


def _as_far_as_alone(case: Case, roots: list[nn.Module], looked: Looked, replay: Callable[[Case], Looked]) -> Looked:
    """Return ``looked``, or what shows up to the first collective, where the loss is bad by then."""
    if case.within or case.by_hand or groups_of(roots):
        return looked
    alone = replay(replace(case, single=True))
    return replace(alone, facts={**alone.facts, "broken_off": True}) if alone.outcome == "found" else looked


def _all_end_in(case: Case, roots: list[nn.Module], seconds: float) -> bool:
    """Whether all ranks come to run the step again that they end in; waits for them, bounded.

    Where hooks of its backward communicate all ranks have met the same harm; in a forward, or where no optimizer makes
    the updates, a rank may end alone, and is waited for 20 steps, and at least 5 s (without an optimizer 30 s at most).
    FSDP2's weights are asked for instead by a rank that leaves (:mod:`nandiag.runtime.together.shards`); where ranks
    could not be told that one has failed in the replay nobody is waited for, for no policy is about to end them.
    """
    if case.within:
        return all_come(f"within/{case.step}")
    if case.by_hand:
        return possible() and all_come(f"by_hand/{case.step}", patience(seconds))
    return possible() and not groups_of(roots) and all_come(f"left/{case.step}", max(_PATIENCE, _STEPS * seconds))


def patience(seconds: float) -> float:
    """Return how long ranks that saw the same harm wait for each other: 20 steps of so many ``seconds``, 5 to 30 s."""
    return min(max(_PATIENCE, _STEPS * seconds), _LONGEST)

"""Weights that an infinite second moment keeps from moving, though all that the run shows is finite (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.report import Finding
from nandiag.analysis.timeline import Timeline
from nandiag.events import Harm, Looked, words

# Optimizer -> the state that its update divides by the root of.
_DIVISORS = {
    "Adam": "exp_avg_sq", "AdamW": "exp_avg_sq", "NAdam": "exp_avg_sq", "RAdam": "exp_avg_sq", "Adamax": "exp_inf",
    "RMSprop": "square_avg", "Adagrad": "sum",
}  # fmt: skip


def still_of(timeline: Timeline) -> Iterable[Finding]:
    """Yield which weights do not move any more: what is divided by infinity is 0, and so is each update of theirs.

    A run that was stopped has nothing more to move.
    """
    if any(one.event.action == "stop" for one in timeline.stops):
        return
    made = {(one.attempt, one.rank, one.event.step) for one in timeline.looks if _is_made(one.event)}
    lost = {(one.attempt, one.rank) for one in timeline.harms if one.event.what == "parameter"}
    groups: dict[tuple[str, int], set[int]] = {}
    for one in timeline.harms:
        text = _told(one.event, known=(one.attempt, one.rank, one.event.step) in made)
        if text is not None and (one.attempt, one.rank) not in lost:
            groups.setdefault((text, one.event.step), set()).add(one.rank)
    for (text, step), ranks in groups.items():
        yield Finding("weights_stand_still", "warning", text, tuple(sorted(ranks)), step)


def _is_made(look: Looked) -> bool:
    """Whether the update of the step itself was seen to make it."""
    return (look.outcome, look.source, look.phase) == ("found", "op", "optimizer")


def _told(harm: Harm, *, known: bool) -> str | None:
    """Return the sentence where the state that the update divides by is infinite, and is all that is bad.

    It is divided by in the very update that makes it so; ``known``: that is the one of its step, and none before.
    """
    divisor = _DIVISORS.get(harm.optimizer or "")
    bad = [fact for fact in harm.tensors if fact.bad]
    if harm.what != "optimizer_state" or divisor is None or not bad or any(fact.nan or fact.neginf for fact in bad):
        return None
    named = [(fact.name or "").partition(" of ") for fact in bad]
    if any(state != divisor for state, _, _ in named):
        return None
    whole = all(fact.bad == fact.numel for fact in bad)
    names = words.few([name for _, _, name in named], harm.bad)
    there, what = ("", "these weights") if whole else (" in places", "these values")
    before = "" if known or harm.since == harm.step - 1 else ", if not before"
    return (
        f"{divisor} of {names} is Inf{there}: {harm.optimizer} divides by it, so that its updates of {what} are "
        f"0 from step {harm.step} on{before}, and they never move again."
    )

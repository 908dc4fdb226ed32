"""A gradient far beyond what the outlier of its batch makes of it: the loss takes more than that (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.early.texts import told
from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

# Behind a layer and an error, both squared, a gradient grows with the fourth power of what the model is given.
_POWER = 4


def beyond(facts: Facts, seen: Warned) -> Cause | None:
    """Return the cause where the update of a step squared gradients that outgrew ``seen``; None where it may be that.

    The targets are not looked at: what stands beside the input in the batch is to be looked at by hand. They are not
    to blame where an exponential may be.
    """
    outgrown = _outgrown(facts, seen)
    if outgrown is None or _is_exponential(facts, seen, *outgrown):
        return None
    grown, usual = outgrown
    step, rank = seen.step, facts.on_rank(seen)
    why = (
        f"Gradients of {words.number(grown)}, where their norm was about {words.number(usual)} before, do not come of "
        "that alone: what the loss takes beside it (targets, weights) is likely as far out."
    )
    look = f"Look at the targets and weights of step {step}{rank} first, and drop or mend such samples while loading."
    return Cause(
        slug="data_outlier",
        evidence=(f"At step {step}{rank} {told(seen)}.", why),
        suggestions=(Suggestion(look), *_clipped(facts)),
        strength=LIKELY,
        story=True,
    )


def by_exponential(facts: Facts, seen: Warned) -> str | None:
    """Say how ``seen`` came to gradients beyond its own powers, where an exponential is the likely way; else None."""
    outgrown = _outgrown(facts, seen)
    if outgrown is None or not _is_exponential(facts, seen, *outgrown):
        return None
    grown, usual = outgrown
    return (
        f"Loss and gradients grew alike, these to {words.number(grown)} from a norm of about {words.number(usual)}: an "
        "exponential of what grows with the inputs makes as much of it. Bound what goes into one, if the model or the "
        "loss has it."
    )


def _outgrown(facts: Facts, seen: Warned) -> tuple[float, float] | None:
    """Return the largest gradient and the usual norm where that grew far more than ``seen``, else None."""
    if not facts.in_update or not overflows(facts) or seen.step != facts.origin.step:
        return None
    ratio = _ratio(seen)
    usual = max((one.usual_norm for one in courses(facts.history, facts.origin.step)), default=0.0)
    grown = max((fact.absmax or 0.0 for fact in facts.origin.inputs[1:]), default=0.0)
    return (grown, usual) if ratio and usual and grown / usual > ratio**_POWER else None


def _ratio(seen: Warned) -> float | None:
    size, largest = (words.as_number(seen.facts.get(name)) for name in ("size", "largest"))
    return size / largest if size and largest else None


def _is_exponential(facts: Facts, seen: Warned, grown: float, usual: float) -> bool:
    """Whether the loss, too, outgrew the outlier, and the gradients grew no less than it.

    Of targets that are as far out the loss takes a power, of which gradients take less.
    """
    found = courses(facts.history, seen.step + 1)
    now = max((abs(row.loss) for one in found for row in one.rows if row.step == seen.step and row.loss), default=0.0)
    before = max((one.usual_loss for one in courses(facts.history, seen.step)), default=0.0)
    ratio = _ratio(seen)
    return bool(ratio and before) and ratio**_POWER < now / before <= grown / usual  # type: ignore[operator]


def _clipped(facts: Facts) -> tuple[Suggestion, ...]:
    line = facts.clipped() if facts.clip is None else None
    text = "Clip the gradients right before the update: no sample can then throw the optimizer's state so far."
    return () if line is None else (Suggestion(text, line),)

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

    The targets are not looked at: what stands beside the input in the batch is to be looked at by hand.
    """
    if not facts.in_update or not overflows(facts) or seen.step != facts.origin.step:
        return None
    size, largest = (words.as_number(seen.facts.get(name)) for name in ("size", "largest"))
    usual = max((one.usual_norm for one in courses(facts.history, facts.origin.step)), default=0.0)
    grown = max((fact.absmax or 0.0 for fact in facts.origin.inputs[1:]), default=0.0)
    if not size or not largest or not usual or grown / usual <= (size / largest) ** _POWER:
        return None
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


def _clipped(facts: Facts) -> tuple[Suggestion, ...]:
    line = facts.clipped() if facts.clip is None else None
    text = "Clip the gradients right before the update: no sample can then throw the optimizer's state so far."
    return () if line is None else (Suggestion(text, line),)

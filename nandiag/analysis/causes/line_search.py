"""A point that an optimizer with a closure went to by a whole step, without a search along its line (reader side)."""

from __future__ import annotations

import math

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.causes.mends.scales import starts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_SHOWN = 4


def explain(facts: Facts) -> Cause | None:
    """Name the step within a step: what overflowed at a later evaluation of the closure did not at the first."""
    harm, losses = facts.harm, _losses(facts)
    if harm is None or not went_whole(facts):
        return None
    kind = harm.optimizer or "The optimizer"
    were = f"the loss was {', '.join(words.number(loss) for loss in losses[-_SHOWN:])} before"
    told = (
        f"{kind} itself made the point at which it broke: it was evaluation {len(losses) + 1} of its closure in this "
        f"step ({were}). Without a line search it takes each step whole, however far that leads."
    )
    name = harm.names.get("optimizer")
    made = "" if name is None else f"{name} = "
    mend = Suggestion(
        f"Let {kind} search along each step for a point at which the loss is lower.",
        f'{made}torch.optim.{kind}(..., line_search_fn="strong_wolfe")',
    )
    return Cause("lr_divergence", (told,), (mend, starts.NORMALISE), LIKELY, story=True, leads=True)


def went_whole(facts: Facts) -> bool:
    """Whether it overflowed at a point within a step: what grew from one evaluation to the next is no course of a run.

    Nor is what a clipped gradient would mend: the directions are made of the gradients as the closure leaves them.
    """
    if facts.harm is None or facts.harm.searches is not False or facts.origin.phase not in {"forward", "loss"}:
        return False
    return bool(_losses(facts)) and facts.extra.get("of_weights") is not False and overflows(facts)


def _losses(facts: Facts) -> list[float]:
    """Return the losses of the evaluations before, in the same step of the same optimizer."""
    past, harm = facts.history, facts.harm
    if past is None or harm is None or not past.step:
        return []
    whose = past.optimizer or (0,) * len(past.step)
    rows = [(loss, one) for step, loss, one in zip(past.step, past.loss, whose, strict=False) if step == harm.step]
    own = [loss for loss, one in rows if one == rows[-1][1]]
    return [loss for loss in own if loss is not None and math.isfinite(loss)]

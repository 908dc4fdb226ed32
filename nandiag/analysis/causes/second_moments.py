"""A mean of squares of an optimizer's that is below zero: no update makes it so, a state that was loaded does (reader).

Adam's two moments in each other's place are the usual way: the first one may have any sign.
"""

from __future__ import annotations

from nandiag.analysis.causes.division_by_zero import is_called
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_ROOTS = frozenset({"sqrt", "rsqrt"})
_LOOK = (
    "Look at how the optimizer's state was loaded or converted: moments in each other's place, or interpolated beyond "
    "their ends. Check it right after it was loaded."
)
_OF_ADAM = "assert all((state['exp_avg_sq'] >= 0).all() for state in {}.state.values())"


def explain(facts: Facts) -> Cause | None:
    """Name a state that was loaded so where an optimizer of a library takes the root of what is negative."""
    op, given = (facts.op or "").rstrip("_"), facts.origin.inputs
    if not facts.in_update or op not in _ROOTS or not is_called(facts) or not given:
        return None
    lowest = given[0].min
    if lowest is None or lowest >= 0:
        return None
    named = facts.extra.get("parameters")
    of = f" of {words.few([str(name) for name in named], most=2)}" if isinstance(named, list) and named else ""
    told = f"what should be a mean of squares{of} goes down to {words.number(lowest)}"
    settings = facts.extra.get("settings")
    of_adam = _OF_ADAM.format(facts.called("optimizer"))
    check = Suggestion(_LOOK, of_adam if isinstance(settings, dict) and "betas" in settings else None)
    why = "A mean of squares is never negative, and no update makes it so: it was written, or loaded, as it is."
    read = facts.read_from("exp_avg_sq") or facts.read_from()
    came = () if read is None else (f"This state was {read}.",)
    return Cause("checkpoint_corruption", (told, why, *came), (check,), LIKELY, story=True, leads=True)

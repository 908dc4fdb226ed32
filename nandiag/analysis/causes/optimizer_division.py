"""An optimizer's update that divides by zero (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.causes.division_by_zero import DIVISIONS, RATIOS, RECIPROCALS, is_called
from nandiag.analysis.causes.facts import HALF, LIKELY, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.divisors import corrections
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="optimizer_division",
    what="An optimizer's update divided by a quantity that is zero, as that of a gradient of zeros is: a parameter "
    "that took no part in the loss, or a first step.",
    looks=(
        "error[optimizer_division]: +Inf born on rank 0 at step 0 in the update of 0.0.down.weight and 1 more",
        (
            "The update of 0.0.down.weight, 0.2.down.weight divides by a quantity that is 0, as that of a gradient "
            "of zeros is."
        ),
    ),
    fix=(
        Suggestion(
            "Give the optimizer an eps, and add it where the division is.",
            "update / (second_moment.sqrt() + eps)",
        ),
        Suggestion(
            "Leave parameters out of the update whose gradient is zero throughout.",
        ),
    ),
    pages=(
        "optim.html",
        "generated/torch.optim.Adam.html",
    ),
)

_OF_ZERO = re.compile(r"\beps\b\W+0(?:\.0*)?(?![\w.])")
_CHECK = Suggestion("Check the optimizer's eps, and what it does with a gradient of zeros.", "eps=1e-8")


def explain(facts: Facts) -> Cause | None:
    """Add to a division in an update what it belongs to: a parameter whose gradient, or second moment, is zero."""
    op, inputs = facts.op or "", facts.origin.inputs
    if not facts.in_update or op not in {*DIVISIONS, *RATIOS, *RECIPROCALS}:
        return None
    by_number = op in DIVISIONS and facts.number("arg1") == 0
    divisor = inputs[min(RATIOS.get(op, 0 if op in RECIPROCALS else 1), len(inputs) - 1)] if inputs else None
    if not by_number and (divisor is None or not divisor.zeros or _was_rounded(divisor, facts)):
        return None
    named = facts.extra.get("parameters")
    of = f" of {words.few([str(name) for name in named])}" if isinstance(named, list) and named else ""
    called = is_called(facts)
    of_zeros = "" if facts.extra.get("began_of_zeros") else ", as that of a gradient of zeros is"
    restored = corrections.restored(facts)
    counted = by_number or corrections.mended(facts, infinite=True) is not None
    what = "a number that is 0" if counted else f"a quantity that is 0{of_zeros}"
    return Cause(
        slug="optimizer_division",
        evidence=(f"The update{of} divides by {what}.",),
        # Where the script's own line divides, the mend is there: an eps that the optimizer has may stand elsewhere.
        suggestions=(_set(facts, by_number=by_number),) if called else () if restored is None else (restored,),
        strength=LIKELY,
        story=True,
        leads=called or restored is not None,
        follows=not called and restored is None,
    )


def _was_rounded(divisor: TensorFact, facts: Facts) -> bool:
    return dtype_of(divisor) in HALF and not facts.divides_zeros


def _no_eps(facts: Facts) -> Suggestion:
    """Say that the optimizer has none, and where the script took it away, as far as that is known."""
    known = facts.compared.settings if facts.compared is not None else ()
    settings = facts.extra.get("settings")
    seen = settings.get("eps_set_at") if isinstance(settings, dict) else None
    places = next((one.set_at for one in known if one.name == "eps" and one.now == 0), ()) or seen
    lines = [" ".join(str(one).split()) for one in places] if isinstance(places, list | tuple) else []
    # That of the number itself, where another hands it on.
    line = next((one for one in lines if _OF_ZERO.search(one)), next(iter(lines), None))
    at = f" The script sets it in {line}." if line is not None else ""
    text = f"The optimizer's eps is 0: it divides by 0 for a gradient of zeros. Give it one.{at}"
    return Suggestion(text, "eps=1e-8")


def _set(facts: Facts, *, by_number: bool) -> Suggestion:
    """Say which of the optimizer's settings leads to a division by zero, as far as they are known."""
    endless = corrections.of_one(facts)
    if endless is not None:
        return endless
    settings = facts.extra.get("settings")
    eps = settings.get("eps") if isinstance(settings, dict) else None
    if not by_number and eps == 0:
        return _no_eps(facts)
    if not by_number and not eps:
        return _CHECK
    told = "" if eps is None else f" (its eps of {words.number(words.as_number(eps))} stands elsewhere)"
    return Suggestion(
        f"Look at the optimizer's settings for what makes its divisor 0{told}: rates, betas, step counts."
    )

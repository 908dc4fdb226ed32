"""A half-precision number that was rounded to zero and then divided by (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.division_by_zero import DIVISIONS, RATIOS, RECIPROCALS
from nandiag.analysis.causes.facts import HALF, LIKELY, NEAR_ONE, POSSIBLE, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.script import bounding
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="precision_underflow",
    what="A number was rounded to zero, or to one, by half precision, and then divided by or taken the logarithm "
    "of. Below 2.9e-8 float16 is 0, and eps=1e-8 is 0 in it; bfloat16 has only 3 digits, so that 1 - p is 0 "
    "long before p is 1.",
    looks=(
        (
            "error[precision_underflow]: NaN and Inf born on ranks 0-1 at step 0 in the update of items.weight and "
            "3 more"
        ),
        (
            "the divisor of the update is 0 in float16: an eps of 1e-8 is 0 in it, and so is the square of a small "
            "gradient"
        ),
    ),
    fix=(
        Suggestion(
            "Compute this quantity in float32.",
            "b = b.float()",
        ),
        Suggestion(
            "Keep weights and optimizer in float32, and use autocast for speed.",
            "model.float()",
        ),
        Suggestion(
            "Or give the optimizer an eps that the dtype can hold.",
            "torch.optim.Adam(model.parameters(), eps=1e-4)",
        ),
    ),
    pages=(
        "amp.html",
        "type_info.html",
        "generated/torch.optim.Adam.html",
    ),
)

# A little less than half of the smallest number that there is, up to which it is rounded to 0.
_TO_ZERO = {"float16": "2.9e-8", "bfloat16": "4.5e-41"}
_IN_FLOAT32 = (
    "Keep the weights and the optimizer in float32, and so what the model is called with (leave out its .half()), and "
    "use autocast for speed."
)
_COARSE = "it has 3 digits, so that 1 - 0.999 is 0 in it, and a small eps is lost in a sum"


def explain(facts: Facts) -> Cause | None:
    """Name the rounding behind a zero divisor: sure enough in an optimizer's update, whose eps should prevent it."""
    op, inputs = facts.op or "", facts.origin.inputs
    if not facts.finite_inputs or facts.node is not None or op not in {*DIVISIONS, *RATIOS, *RECIPROCALS}:
        return None
    divisor = inputs[min(RATIOS.get(op, 0 if op in RECIPROCALS else 1), len(inputs) - 1)]
    dtype = dtype_of(divisor)
    if dtype not in HALF or not divisor.zeros:
        return None
    if facts.in_update:
        return None if facts.divides_zeros else _in_update(facts, dtype)
    near = words.number(NEAR_ONE[dtype])
    lost = f"{dtype} rounds what is below {_TO_ZERO[dtype]} to 0, and all within {near} of 1 to 1"
    return Cause(
        slug="precision_underflow",
        evidence=(f"The divisor is {dtype}: {lost}.",),
        # A small number that is added to the divisor, and lost in it, is what was to keep it from 0.
        strength=LIKELY if bounding.has_eps((facts.origin.source or "").strip(), "div", 0.0) else POSSIBLE,
        story=True,
    )


def _in_update(facts: Facts, dtype: str) -> Cause:
    small = "an eps of 1e-8 is 0 in it, and so is the square of a small gradient"
    text = f"the divisor of the update is 0 in {dtype}: {small if dtype == 'float16' else _COARSE}"
    return Cause(
        slug="precision_underflow",
        evidence=(text,),
        suggestions=(
            Suggestion(_IN_FLOAT32, f"{facts.called('model')}.float()"),
            Suggestion("Or give the optimizer an eps that the dtype can hold.", "eps=1e-4"),
        ),
        strength=LIKELY,
        story=True,
    )

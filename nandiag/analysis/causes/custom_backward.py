"""The backward of an autograd function of the user's own (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="custom_backward",
    what="The backward of an autograd function of the script's own made the bad value from finite inputs. Its "
    "formula divides by zero, or leaves the range of the dtype, at a value that its forward takes well.",
    looks=(
        "error[custom_backward]: -Inf born on rank 0 at step 20 in the backward of Entropy",
        "It happened in the backward of the script's own function Entropy; what came in was finite.",
    ),
    fix=(
        Suggestion(
            "Compare it with finite differences at such values, in float64.",
            "torch.autograd.gradcheck(MyFunction.apply, inputs)",
        ),
        Suggestion(
            "Keep the divisor away from zero, as in the forward; save what the backward needs, not what it must "
            "recompute.",
        ),
    ),
    pages=(
        "notes/extending.html",
        "notes/gradcheck.html",
    ),
)


def explain(facts: Facts) -> Cause | None:
    """Name the user's ``Function.backward``: its node ends in Backward, where torch's own end in a number."""
    name = words.own_function(facts.origin.node)
    if name is None or not facts.by_user or not facts.finite_inputs:
        return None
    return Cause(
        slug="custom_backward",
        evidence=(f"It happened in the backward of the script's own function {name}; what came in was finite.",),
        suggestions=(
            Suggestion(
                f"Compare the backward of {name} with its forward at such values.",
                f"torch.autograd.gradcheck({name}.apply, inputs)",
            ),
        ),
        strength=LIKELY,
        story=True,
        follows=True,
    )

"""A gradient that is infinite at a finite point: sqrt, norm or a power at zero (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, PROVEN, Cause, Facts
from nandiag.analysis.report import Suggestion

AT_ZERO = ("Sqrt", "Norm", "LinalgVectorNorm", "Pow", "Cdist", "Rsqrt", "Std", "Var")


def explain(facts: Facts) -> Cause | None:
    """Name an autograd node whose function has no finite gradient at zero, where a zero went into it."""
    node = facts.origin.node
    unseen = facts.look is not None and facts.look.method == "check"
    if node is None or not (facts.finite_inputs or unseen) or not node.startswith(AT_ZERO):
        return None
    zeros = any(fact.zeros for fact in facts.origin.inputs)
    name = facts.forward_op or node.partition("Backward")[0].lower()
    seen = (
        f"its inputs hold {sum(fact.zeros for fact in facts.origin.inputs):,} zeros"
        if zeros
        else "its inputs were not seen"
        if unseen
        else "gradient not finite"
    )
    return Cause(
        slug="singular_gradient",
        evidence=(f"the gradient of {name} has no finite value at 0; {seen}",),
        suggestions=(
            Suggestion("Keep the argument above zero, inside the function.", "(x * x).sum().clamp_min(1e-12).sqrt()"),
            Suggestion(
                "torch.where after the function does not help: the gradient of the other branch is still taken."
            ),
        ),
        strength=POSSIBLE if unseen else PROVEN if zeros and node.startswith(("Sqrt", "Rsqrt")) else LIKELY,
    )

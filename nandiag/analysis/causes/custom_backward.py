"""The backward of an autograd function of the user's own (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import POSSIBLE, Cause, Facts
from nandiag.analysis.report import Suggestion


def explain(facts: Facts) -> Cause | None:
    """Name the user's ``Function.backward``: its node ends in Backward, where torch's own end in a number."""
    node = facts.origin.node
    if node is None or not facts.by_user or not node.endswith("Backward") or not facts.finite_inputs:
        return None
    name = node.removesuffix("Backward")
    return Cause(
        slug="custom_backward",
        evidence=(f"It happened in the backward of the script's own function {name}; what came in was finite.",),
        suggestions=(
            Suggestion(
                f"Compare the backward of {name} with its forward at such values.",
                f"torch.autograd.gradcheck({name}.apply, inputs)",
            ),
        ),
        strength=POSSIBLE,
        story=True,
    )

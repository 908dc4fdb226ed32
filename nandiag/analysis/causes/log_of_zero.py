"""log(0): the logarithm, or its gradient, at an exact zero (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import HALF, Cause, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

LOGS = frozenset({"log", "log2", "log10"})


def explain(facts: Facts) -> Cause | None:
    """Name log(0) where a logarithm has zeros in its input, or where its gradient divides by one."""
    if facts.op in LOGS and facts.finite_inputs:
        given = facts.origin.inputs[0]
        return _cause(f"the input of {facts.op} holds {_zeros(given)}; log(0) is -inf", given) if given.zeros else None
    if facts.forward_op in LOGS and facts.finite_inputs:
        given = next((fact for fact in facts.origin.inputs if fact.zeros), facts.origin.inputs[0])
        text = f"the gradient of {facts.forward_op} is 1/x, and x holds {_zeros(given)}"
        return _cause(text, given) if given.zeros else None
    return None


def _zeros(given: TensorFact) -> str:
    return "0" if given.numel == 1 else f"{words.count(given.zeros, 'zero')} in {given.numel:,} values"


def _cause(text: str, given: TensorFact) -> Cause:
    half = dtype_of(given) in HALF
    small = " A small constant like 1e-8 is itself 0 in float16." if dtype_of(given) == "float16" else ""
    return Cause(
        slug="log_of_zero",
        evidence=(text,),
        suggestions=(
            Suggestion(
                "Keep the argument of the logarithm away from zero." + small,
                f"x.{'float().' if half else ''}clamp_min(torch.finfo(torch.float32).tiny).log()",
            ),
            Suggestion(
                "Where x is a softmax or a sigmoid, take the logarithm in one step.", "F.log_softmax(z, dim=-1)"
            ),
        ),
    )

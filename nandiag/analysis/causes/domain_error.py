"""A function outside its domain: log or sqrt of a negative number, acos beyond 1 (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

# op -> lowest and highest argument that it is defined for
DOMAINS: dict[str, tuple[float | None, float | None]] = {
    "log": (0.0, None),
    "log2": (0.0, None),
    "log10": (0.0, None),
    "log1p": (-1.0, None),
    "sqrt": (0.0, None),
    "rsqrt": (0.0, None),
    "acos": (-1.0, 1.0),
    "asin": (-1.0, 1.0),
    "atanh": (-1.0, 1.0),
    "acosh": (1.0, None),
    "logit": (0.0, 1.0),
}


def explain(facts: Facts) -> Cause | None:
    """Name the argument that lies outside the op's domain where the op gave NaN."""
    domain = DOMAINS.get(facts.op or "")
    if domain is None or not facts.finite_inputs or not any(fact.nan for fact in facts.origin.outputs):
        return None
    outside = _outside(facts.origin.inputs[0], *domain)
    if outside is None:
        return None
    low, high = (bound if bound is None else words.number(bound) for bound in domain)
    return Cause(
        slug="domain_error",
        evidence=(f"the input of {facts.op} goes to {words.number(outside)}, outside its domain; the result is NaN",),
        suggestions=(
            Suggestion(
                "Find out why the value leaves the domain; where rounding alone does it, clamp it.",
                f"x.clamp(min={low}).{facts.op}()" if high is None else f"x.clamp({low}, {high}).{facts.op}()",
            ),
        ),
    )


def _outside(given: TensorFact, low: float | None, high: float | None) -> float | None:
    if low is not None and given.min is not None and given.min < low:
        return given.min
    return given.max if high is not None and given.max is not None and given.max > high else None

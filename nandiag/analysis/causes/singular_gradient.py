"""A gradient that is infinite at a finite point: sqrt at zero, acos at one, a zero vector's angle (reader side)."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nandiag.analysis.causes import domain_error
from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.causes.mends.script.guards import under_root
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="singular_gradient",
    what="A function is finite at a point, and its gradient is not: the root at 0, the norm of a zero vector, acos "
    "at 1, a power below 1 at 0. A torch.where behind it does not help, for both branches are differentiated, "
    "and 0 times Inf is NaN.",
    looks=(
        "error[singular_gradient]: NaN born on rank 1 at step 14 in backward of strength",
        "the gradient of hypot is 0/0 at (0, 0); 1 of 16 values is there",
    ),
    fix=(
        Suggestion(
            "Keep the argument away from the point, inside the function.",
            "torch.sqrt(x.clamp_min(1e-12))\n(x * x).sum(-1).clamp_min(1e-12).sqrt()",
        ),
        Suggestion(
            "Put a torch.where before the function, not behind it.",
            "f(torch.where(ok, x, torch.ones_like(x)))",
        ),
    ),
    pages=(
        "notes/autograd.html",
        "generated/torch.where.html",
        "generated/torch.sqrt.html",
    ),
)


@dataclass(frozen=True, slots=True)
class _Point:
    """Where a function has no finite gradient, what keeps its argument from there, and that in code.

    In ``code``, ``{0}`` and ``{1}`` stand for the two that a function is given.
    """

    where: str
    text: str = "Keep the argument away from this point, inside the function."
    guard: str = "clamp_min(1e-12)"
    code: str | None = None


_ENDS = "Keep the argument inside the open interval."
_NORM = _Point("0", "Take the root of a sum that is kept above zero.", code="(x * x).sum(-1).clamp_min(1e-12).sqrt()")
_SPREAD = _Point("0", "Keep the variance above zero before its root is taken.", code="(x.var(-1) + 1e-12).sqrt()")
_UNIT = _Point("-1 and 1", _ENDS, "clamp(-1 + 1e-6, 1 - 1e-6)")

# Name of the autograd node without "Backward" -> where its formula divides by zero.
POINTS = {
    "Sqrt": _Point("0"),
    "Rsqrt": _Point("0"),
    "Reciprocal": _Point("0", guard="clamp_min(1e-6)"),
    "Pow": _Point("0 for exponents below 1", guard="clamp_min(1e-6)"),
    "FloatPower": _Point("0 for exponents below 1", guard="clamp_min(1e-6)"),
    "Log1P": _Point("-1", guard="clamp_min(-1 + 1e-6)"),
    "Logit": _Point("0 and 1", _ENDS, code="torch.logit(x, eps=1e-6)"),
    "Acos": _UNIT,
    "Asin": _UNIT,
    "Atanh": _UNIT,
    "Erfinv": _UNIT,
    "Acosh": _Point("1", guard="clamp_min(1 + 1e-6)"),
    "Atan2": _Point(
        "(0, 0)", "Give zero vectors another angle before the call.",
        code="torch.atan2({0}, torch.where(({1} == 0) & ({0} == 0), torch.ones_like({1}), {1}))",
    ),
    "Hypot": _Point(
        "(0, 0)", "Take the root of a sum that is kept above zero.",
        code="({0} * {0} + {1} * {1}).clamp_min(1e-12).sqrt()",
    ),
    "Xlogy": _Point("0", guard="clamp_min(1e-12)"),
    "SpecialXlog1Py": _Point("-1", guard="clamp_min(1e-12)"),
    "SpecialEntr": _Point("0", guard="clamp_min(1e-12)"),
    "Norm": _NORM,
    "LinalgVectorNorm": _NORM,
    "Dist": _NORM,
    "Cdist": _NORM,
    "EuclideanDist": _NORM,
    "PairwiseDistance": _NORM,
    "Renorm": _NORM,
    "Abs": _Point("0 of complex numbers"),
    "Std": _SPREAD,
    "StdMean": _SPREAD,
    "Var": _SPREAD,
    "VarMean": _SPREAD,
}  # fmt: skip
# The functions that a script calls by these names; the nodes of others are of an op that has the call's own name.
_CALLED = {
    **{base.lower(): base for base in ("Sqrt", "Rsqrt", "Log1P", "Logit", "Acos", "Asin", "Atanh", "Erfinv", "Acosh")},
    **{base.lower(): base for base in ("Atan2", "Hypot", "Xlogy", "Norm", "Cdist", "Std", "Dist", "Renorm")},
    "arctan2": "Atan2", "arccos": "Acos", "arcsin": "Asin", "vector_norm": "LinalgVectorNorm",
}  # fmt: skip
_TANGENTS = frozenset({"div", "mul", "pow", "rsqrt", "reciprocal", "log"})
_POWERS = ("Pow", "FloatPower")
_INVERSES = frozenset({"reciprocal", "rsqrt"})
_QUOTIENTS = frozenset({"div", "true_divide", "divide"})
_BOTH_BRANCHES = Suggestion(
    "torch.where behind the function does not help, as both branches are differentiated: put it before.",
    "f(torch.where(ok, x, torch.ones_like(x)))",
)


def explain(facts: Facts) -> Cause | None:
    """Name an autograd node whose function has no finite gradient at a point that it was given."""
    if (called := tangent_of(facts)) is not None:
        return _cause(facts, POINTS[_CALLED[called]], called, "derivative (forward-mode tangent)")
    return _of_node(facts)


def _of_node(facts: Facts) -> Cause | None:
    node = facts.node
    base = None if node is None else node.partition("Backward")[0]
    point = POINTS.get(base or "")
    if base is None or point is None or not facts.finite_inputs:
        return None
    if (least := near_zero(facts)) is not None:
        return _near(facts, *least)
    if facts.extra.get("float64_finite") is True:
        return None
    if base in _POWERS and facts.op == "log":
        return _by_exponent(facts)
    if domain_error.explain(facts) is not None:
        return None  # beyond the point, and not at it
    twice = facts.extra.get("twice") is True
    return _cause(facts, point, facts.forward_op or base.lower(), "second derivative" if twice else "gradient")


def tangent_of(facts: Facts) -> str | None:
    """Return the function of torch's that the script calls, where it is its forward-mode derivative that broke.

    Such a derivative is made of ops of its own (a division, say) at the place of the call, which itself is finite.
    """
    if facts.extra.get("dual") is not True or facts.node is not None or not facts.finite_inputs:
        return None
    found = fitting.parsed(facts.origin)
    call = found[1].func if found is not None and isinstance(found[1], ast.Call) else None
    name = call.attr if isinstance(call, ast.Attribute) else ""
    return name if name in _CALLED and facts.op in _TANGENTS else None


def _cause(facts: Facts, point: _Point, name: str, what: str) -> Cause:
    at = _values_there(facts)
    seen = f"; {_many(at)} there" if at is not None else ""
    how = "is 0/0" if facts.outputs_nan else "is infinite"
    where = point.where.replace("below 1", "below 2") if what.startswith("second") else point.where
    return Cause(
        slug="singular_gradient",
        evidence=(f"the {what} of {name} {how} at {where}{seen}",),
        suggestions=(Suggestion(point.text, _code(facts, name, point)), *([_BOTH_BRANCHES] if _chooses(facts) else [])),
        strength=PROVEN if at is not None else LIKELY,
    )


def near_zero(facts: Facts) -> tuple[float, float] | None:
    """Return how near to 0 the base of a power came whose gradient is huge by that alone, and the power of it.

    The formula's own product may be what leaves the dtype: what it is given are two large numbers, and no base.
    """
    known = facts.extra.get("power_of")
    if facts.node is None or facts.op != "mul" or not isinstance(known, dict):
        return None
    low, least, power = (words.as_number(known.get(name)) for name in ("min", "absmin", "power"))
    if low is None or least is None or power is None or low < 0.0 or power >= 0.0 or not 0.0 < least < _NEAR:
        return None
    return least, power


_NEAR = 1e-9


def _near(facts: Facts, least: float, power: float) -> Cause:
    to = words.number(power)
    text = f"the gradient of pow is infinite at 0, and its base goes down to {words.number(least)}"
    # What a root's gradient is below that is more than any use is made of; of other powers it is so sooner.
    guard = "clamp_min(1e-12)" if power >= -0.5 else POINTS["Pow"].guard
    code = fitting.argument(facts.origin, "pow", lambda inner: f"{inner}.{guard}") or f"x.{guard} ** p"
    told = (f"{text}: the base to the power {to} is huge",)
    return Cause("singular_gradient", told, (Suggestion(POINTS["Pow"].text, code),), PROVEN)


def _by_exponent(facts: Facts) -> Cause | None:
    """An exponent that is learnt has a gradient of its own, whatever it is: x ** p times the logarithm of x."""
    least = facts.origin.inputs[0].min
    if least is None or least >= 0 or not facts.outputs_nan:
        return None
    seen = f"the gradient of pow by its exponent takes the logarithm of the base, which goes to {words.number(least)}"
    text = "Keep the base above zero, inside the function, or the exponent out of what is learnt."
    mend = Suggestion(text, _code(facts, "pow", POINTS["Pow"]))
    return Cause("singular_gradient", (f"{seen}; that is NaN",), (mend,))


def _chooses(facts: Facts) -> bool:
    """Whether the script's text has a ``where`` at the line, or behind it, which seems to be a guard."""
    return any("where(" in text for text in (facts.origin.source or "", *facts.uses))


def _values_there(facts: Facts) -> TensorFact | None:
    """Return the tensor whose zeros the formula divided by."""
    given, divided = facts.origin.inputs, None
    if facts.op in _QUOTIENTS and len(given) > 1:
        divided = given[1]
    elif facts.op in _INVERSES or (facts.op == "pow" and (facts.number("arg1") or 0.0) < 0):
        divided = given[0]
    return divided if divided is not None and divided.zeros else None


def _many(fact: TensorFact) -> str:
    if fact.numel == 1:
        return "its argument is"
    return f"{fact.zeros:,} of {words.count(fact.numel, 'value')} {'is' if fact.zeros == 1 else 'are'}"


def _code(facts: Facts, name: str, point: _Point) -> str:
    if point.code is not None:
        return _of_two(facts, name, point.code) or point.code.format("y", "x")
    guard = point.guard
    if name == "sqrt" and facts.op in _QUOTIENTS and len(facts.origin.inputs) > 1:
        guard = f"clamp_min(1e{under_root(facts.origin.inputs[1])})"  # it divides by twice the root
    own = _within_ends(facts, name) if guard == _UNIT.guard else None
    fitted = fitting.argument(facts.origin, name, lambda text: f"{own or text}.{guard}")
    return fitted or (f"x.{guard} ** p" if name == "pow" else f"torch.{name}(x.{guard})")


def _within_ends(facts: Facts, name: str) -> str | None:
    """Return the x where ``x.clamp(-1, 1)`` goes into the underlined call: one bound takes the place of that."""
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], name)
    given = [*part.args, *(one.value for one in part.keywords)] if isinstance(part, ast.Call) else []
    inner = None if part is None else fitting.within_clamp(part)
    ends = {ast.unparse(one).removesuffix(".0") for one in given} - {fitting.unbracketed(inner or "")}
    return inner if ends == {"-1", "1"} else None


def _of_two(facts: Facts, name: str, code: str) -> str | None:
    """Return the user's line with ``code`` of its own two in the place of the underlined ``name(a, b)``."""
    found = fitting.parsed(facts.origin)
    first = None if found is None or "{1}" not in code else fitting.target(found[1], name)
    if found is None or first is None or not isinstance(found[1], ast.Call) or found[1].keywords:
        return None
    given = [one for one in found[1].args if one is not first]
    two = [fitting.bracketed(one) for one in (first, *given)]
    return fitting.whole(facts.origin, code.format(*two)) if len(given) == 1 else None

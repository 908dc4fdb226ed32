"""0 to a negative power, which divides by zero, and powers of 0 that are divided by (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.counts import names
from nandiag.analysis.causes.mends.script import fitting, meanings, quotients
from nandiag.analysis.causes.mends.script.guards import small
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_COUNTS = ("sum", "bincount", "count_nonzero", "histc", "mean")
_KEEP = "Keep the base away from zero."
_FLOOR = (
    "Keep the base away from zero, by a tenth of the least beside, say: the smaller it is the larger is its power, and "
    "a 0 for that would be the least of all. Or add as much where it is made."
)
_NOTHING = "Or give 0 there, where nothing is to come of a base of 0."
_ZERO = "Where the base is 0, give 0: a small number in its place would make the power huge."

_ROUNDED = "Where the base is not above 0, give 0: a small number in its place would make the power huge."


def of_zero(facts: Facts) -> Cause | None:
    """Name the zeros of a base whose exponent, a number or one of a tensor's, is negative.

    Of many, what is 0 has 0 in its place, as where a node of a graph has no neighbours.
    """
    base = facts.origin.inputs[0]
    if facts.op != "pow" or not base.zeros or not _is_of_zero(facts):
        return None
    text = f"the base of pow holds {words.count(base.zeros, 'zero')}; 0 to a negative power is Inf"
    fitted = fitting.argument(facts.origin, "pow", lambda text: f"{text}.clamp_min({small(base)})")
    keep = Suggestion(_KEEP, fitted or "x.clamp_min(1e-6) ** -p")
    # What is 0 but for rounding, as an eigenvalue, may be below it, and no fraction is a power of that.
    bound, zero = ("> 0", _ROUNDED) if _is_fraction(facts.number("arg1")) else ("!= 0", _ZERO)
    left = fitting.argument(facts.origin, "pow", lambda text: f"torch.where({text} {bound}, {text}, torch.inf)")
    alone = base.numel == 1 or _has_many(facts)  # of those that are not negative infinity is infinite
    if alone or left is None or "int" in dtype_of(base):
        return Cause("division_by_zero", (text,), (keep,))
    share = _of_share(facts, base)
    if share is not None:
        return Cause("division_by_zero", (text,), (share, Suggestion(_NOTHING, left)))
    return Cause("division_by_zero", (text,), (Suggestion(zero, left), keep))


def _is_fraction(power: float | None) -> bool:
    return power is not None and not float(power).is_integer()


def _of_share(facts: Facts, base: TensorFact) -> Suggestion | None:
    """Return the floor for a base that the script's text makes by a product or a quotient: 0 is but the least of it.

    What counts, or sums up, has 0 where there is nothing.
    """
    made = meanings.into(facts, "pow")
    node = None if made is None else made.node
    scaled = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div)
    if node is None or not scaled or _is_counted(facts, node) or not base.absmin or (base.min or 0.0) < 0:
        return None
    floor = f"{0.1 * base.absmin:.0e}" if base.absmin < 1e-3 else f"{float(f'{0.1 * base.absmin:.1g}'):g}"
    return Suggestion(_FLOOR, fitting.argument(facts.origin, "pow", lambda text: f"{text}.clamp_min({floor})"))


def _is_counted(facts: Facts, node: ast.expr) -> bool:
    """Whether it is what counts or sums up, times a factor or by what it is counted of."""
    above = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else []
    above += [node.left] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else []
    made = [meanings.behind(facts, one).node for one in above]
    return any(fitting.target(one, name) is not None for one in made for name in _COUNTS)


def counted(facts: Facts) -> Suggestion | None:
    """Say to count from 1 on where ``a / t ** p``, or by a root of ``t``, is infinite for a single ``t`` of 0."""
    alone = all(one.numel == 1 for one in (*facts.origin.inputs, *facts.origin.outputs))
    if not alone or facts.node is not None or not any(fact.posinf or fact.neginf for fact in facts.origin.outputs):
        return None
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    base = None if below is None else fitting.target(below, "pow") or fitting.target(below, "sqrt")
    if found is None or not isinstance(base, ast.Name | ast.Attribute):
        return None
    # A schedule's power has a name, as a rule; a square, or what a root is taken of, may be a length or a variance.
    named = isinstance(below, ast.BinOp) and isinstance(below.right, ast.Name | ast.Attribute)
    if not (named or names.is_called(ast.unparse(base))):
        return None
    code = fitting.line_of(facts.origin, found[0], base, lambda text: f"({text} + 1)")
    text = f"{ast.unparse(base)} is 0: a small number in its place would make a huge one of what is divided by it."
    return Suggestion(f"{text} Where it counts, let it do so from 1 on.", code)


def _is_of_zero(facts: Facts) -> bool:
    """Whether it is the zeros of the base that are infinite; of many exponents none may be so large as to do it."""
    base, *exponents = facts.origin.inputs
    if not exponents:
        return (facts.number("arg1") or 0.0) < 0
    least, most = exponents[0].min, exponents[0].max
    if least is None or most is None or least >= 0:
        return False
    return _stays(base.absmax, max(most, 0.0), dtype_of(base)) and _stays(base.absmin, least, dtype_of(base))


def _stays(base: float | None, power: float, dtype: str) -> bool:
    """Whether ``base ** power`` is within the dtype; so it is where no number was seen but zeros."""
    try:
        return not base or base**power < (65504.0 if dtype == "float16" else 1e38)
    except OverflowError:
        return False


def _has_many(facts: Facts) -> bool:
    """Whether the exponents are those of a tensor."""
    return len(facts.origin.inputs) > 1

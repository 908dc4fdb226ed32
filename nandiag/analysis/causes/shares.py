"""A quotient by the sum of what is divided: a softmax, where that is an exponential, which may vanish (reader)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes import exponents, fitting, meanings
from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_MASKED = "It is a softmax: let torch do it, of the lowest finite number for -inf, so that a masked row is a mean."
_SOFTMAX = "It is a softmax: let torch do it, which subtracts the largest exponent first."


def softmax(facts: Facts) -> Suggestion | None:
    """Return the user's line with torch's softmax of the very exponents; ``None`` where the text shows none."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
        return None
    dim = _dim(facts, found[1])
    made = meanings.behind(facts, found[1].left)
    given = fitting.target(made.node, "exp") if made.inside else None
    if dim is None or given is None or not meanings.is_same_again(given):
        return None
    scores, text = ast.unparse(given), _SOFTMAX
    if "vanished" not in facts.extra:  # then a mask of -inf makes the zeros, of which a softmax is NaN as well
        if not isinstance(given, ast.Name):
            return None
        scores, text = f"{scores}.clamp_min(torch.finfo({scores}.dtype).min)", _MASKED
    line = fitting.whole(facts.origin, f"{fitting.assigned(found)}torch.softmax({scores}, dim={dim})")
    return None if line is None else Suggestion(text, line)


def _dim(facts: Facts, quotient: ast.BinOp) -> str | None:
    """Return along what dimension the divisor sums what is divided: of a vector all there is."""
    along = exponents.summed_along(quotient.right)
    if along is not None and ast.dump(along[0]) == ast.dump(quotient.left):
        dim, _, kept = along[1].partition(", ")
        return dim if kept else None
    total = fitting.target(quotient.right, "sum")
    alone = isinstance(quotient.right, ast.Call) and len(quotient.right.args) + len(quotient.right.keywords) == (
        0 if isinstance(quotient.right.func, ast.Attribute) and quotient.right.func.value is total else 1
    )
    vector = len(facts.origin.inputs[0].shape) == 1
    return "0" if total is not None and alone and vector and ast.dump(total) == ast.dump(quotient.left) else None


def is_shared(facts: Facts) -> bool:
    """Whether statements behind the line divide by the sum of what it makes: a large one is a weight of nearly 1."""
    name = (facts.origin.source or "").partition("=")[0].strip()
    if not name.isidentifier():
        return False
    sums = re.compile(rf"/=? \(?(?:{name}\.sum\(|torch\.sum\({name}\b)")
    return any(sums.search(use) for use in facts.uses)


def of_exponentials(facts: Facts, divisor: TensorFact) -> str:
    """Say of what exponentials the zeros of the divisor are made, and which of them are 0."""
    least, where = facts.number("vanished") or 0.0, _exponentials_at(facts)
    return f"it is made of exponentials alone{where}; those of {least:.4g} and below are 0 in {dtype_of(divisor)}"


def _exponentials_at(facts: Facts) -> str:
    at = facts.extra.get("vanished_at")
    if not isinstance(at, list | tuple) or len(at) != 2:
        return ""
    return f" in line {at[1]}" if at[0] == facts.origin.file else f" at {at[0]}:{at[1]}"


def shifted(facts: Facts) -> tuple[Suggestion, ...]:
    """A bound of the divisor would squash the small quotients that are meant, and leave an overflow as it is."""
    where = _exponentials_at(facts)
    ranks = ", on all ranks alike" if facts.world > 1 else ""
    text = f"Subtract from the exponents{where} the largest of those that are summed together{ranks}: the quotients"
    largest = Suggestion(f"{text} stay the same, and each sum holds a 1.")
    if (facts.origin.op or "").startswith("aten.div_"):  # by sums over rows, then over columns: a shift helps but one
        text = "and take exp at the end: in place of each division by a sum, subtract torch.logsumexp of the same."
        return (Suggestion(f"Compute with the exponents{where} themselves, {text}"),)
    known = softmax(facts)
    if known is not None:
        return known, largest
    share = exponents.share(facts.origin)
    return (largest,) if share is None else (Suggestion(_SOFTMAX, share), largest)

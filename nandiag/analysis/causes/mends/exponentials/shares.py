"""A quotient by the sum of what is divided: a softmax, where that is an exponential, which may vanish (reader)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, guards, meanings, parsing
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
    along = forms.summed_along(quotient.right)
    if along is not None and ast.dump(along[0]) == ast.dump(quotient.left):
        dim, _, kept = along[1].partition(", ")
        return dim if kept else None
    total = fitting.target(quotient.right, "sum")
    alone = isinstance(quotient.right, ast.Call) and len(quotient.right.args) + len(quotient.right.keywords) == (
        0 if isinstance(quotient.right.func, ast.Attribute) and quotient.right.func.value is total else 1
    )
    vector = len(facts.origin.inputs[0].shape) == 1
    return "0" if total is not None and alone and vector and ast.dump(total) == ast.dump(quotient.left) else None


_EQUAL = "Where all weights are 0 there is nothing to draw by: a small number added to each makes them equal there."
_DRAWN = re.compile(r"multinomial\(|Categorical\(|Multinomial\(|\bchoices?\(")


def drawn_by(facts: Facts) -> Suggestion | None:
    """Return the user's ``w / w.sum(...)`` with a floor under each weight, where a draw by the quotients follows."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or not facts.outputs_nan:
        return None
    total, drawn = fitting.target(node.right, "sum"), any(_DRAWN.search(use) for use in facts.uses)
    if not drawn or total is None or ast.dump(total) != ast.dump(node.left) or not meanings.is_same_again(node.left):
        return None
    weight = ast.unparse(node.left)
    raised = parsing.written(f"({{}} + {guards.small(facts.origin.inputs[0])})", weight)
    code = f"{raised} / {ast.unparse(node.right).replace(fitting.bracketed(node.left), raised, 1)}"
    line = fitting.whole(facts.origin, f"{weight} = {code}" if fitting.assigned(found) else code)  # type: ignore[arg-type]
    return Suggestion(_EQUAL, line)


def floored(facts: Facts) -> Suggestion:
    """Return the user's ``Categorical(probs=w)`` with a floor under each weight."""
    found = fitting.parsed(facts.origin)
    call = found[1] if found is not None else None
    given = call if isinstance(call, ast.Call) else ast.Call(ast.Name("f"), [], [])
    named = next((word.value for word in given.keywords if word.arg == "probs"), None)
    part = named if named is not None else given.args[-1] if given.args else None
    line = None if found is None or part is None else fitting.line_of(facts.origin, found[0], part, "{} + 1e-6".format)
    return Suggestion(_EQUAL, line or "probs + 1e-6")


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
    share = forms.share(facts.origin)
    return (largest,) if share is None else (Suggestion(_SOFTMAX, share), largest)

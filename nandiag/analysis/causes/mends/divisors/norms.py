"""Lengths, and quotients, of 0: what divides by them further on, correlations, and ratios of lengths (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.counts import kept
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_LEAST = "1e-6"
_NORMS = ("norm", "vector_norm")


def next_of(facts: Facts) -> list[Suggestion]:
    """Return the statement behind the line that divides by its result, or by the norm of that, guarded.

    Only where it was 0/0 here: with a guard the quotient is 0 then, and it breaks there next.
    """
    name = (facts.origin.source or "").partition("=")[0].strip()
    if not facts.outputs_nan or not name.isidentifier():
        return []
    normed = [mended for use in facts.uses if (mended := _guarded(use, name)) is not None]
    if normed:
        return [Suggestion("What is 0 then is divided by its own norm further on: guard that as well.", normed[0])]
    broken = [mended for use in facts.uses if (mended := _kept(facts, use, name)) is not None]
    text = "What is 0 then is divided by, or its root is taken, further on: guard that as well."
    return [Suggestion(text, broken[0])] if broken else []


def _kept(facts: Facts, line: str, name: str) -> str | None:
    """Return a statement with the name kept above 0 where that is divided by, or where its root has no gradient."""
    places = [at for node in fitting.nodes_of(line) if line.isascii() for at in _broken_at(facts, node)]
    least = "1e-30" if facts.in_update else "1e-12"
    for at in sorted({at.end_col_offset or 0 for at in places if ast.unparse(at) == name}, reverse=True):
        line = f"{line[:at]}.clamp_min({least}){line[at:]}"
    return line if any(ast.unparse(at) == name for at in places) else None


def _broken_at(facts: Facts, node: ast.AST) -> list[ast.expr]:
    """Return what a node of a statement cannot take as 0."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [quotients.root_of(node.right) or node.right]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.UnaryOp):
        return [node.left] if isinstance(node.right.op, ast.USub) else []
    differentiated = facts.extra.get("of_weights") is True and not facts.in_update
    ops = ("rsqrt", "reciprocal", *(["sqrt"] if differentiated else []))
    return [part for op in ops if isinstance(node, ast.Call) and (part := fitting.target(node, op)) is not None]


def correlated(facts: Facts) -> Suggestion | None:
    """Return the user's line with the products of rows of length 1 for ``corrcoef(x)``, which has no bound of its own.

    It is the same wherever that is finite, and 0 for a row that does not vary.
    """
    found = fitting.parsed(facts.origin)
    rows = None if found is None else fitting.target(found[1], "corrcoef")
    if rows is None or facts.node is not None or "unit" in (facts.origin.source or ""):
        return None
    x = fitting.bracketed(rows)
    unit = f"torch.nn.functional.normalize({x} - {x}.mean(-1, keepdim=True), dim=-1, eps={_LEAST})"
    text = "A row that does not vary has the spread 0: take the products of rows of length 1, which torch bounds."
    return Suggestion(text, fitting.whole(facts.origin, f"((unit := {unit}) @ unit.T)"))


def without_direction(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Say where vectors begin that are 0 all over in the first step: behind a guard they would stay so, as a rule.

    ``None`` where the text does not show that they are divided by their own length, and what layer makes them.
    """
    found, above = fitting.parsed(facts.origin), facts.origin.inputs[0]
    node = None if found is None else found[1]
    empty = facts.outputs_nan and divisor.numel > 1 and divisor.zeros == divisor.numel and above.zeros == above.numel
    first = facts.origin.step == 0 and facts.extra.get("of_weights") is True
    if not (empty and first) or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    given = next((one for op in _NORMS if (one := fitting.target(meanings.behind(facts, node.right).node, op))), None)
    layer = _layer(meanings.behind(facts, node.left))
    if given is None or layer is None or ast.unparse(given) != ast.unparse(node.left):
        return None
    text = (
        f"{ast.unparse(node.left)} is 0 all over, for {layer} begins at 0: it has no direction, and behind a guard its "
        "gradient would be 0, or huge. Let the layer begin with small numbers."
    )
    return Suggestion(text, f"torch.nn.init.normal_({layer}.weight, std=0.02)  # behind what sets it to 0")


def ratio(facts: Facts) -> Suggestion | None:
    """Return the user's line with 1 for the ratio of two lengths, one of which is 0, by which an update is scaled.

    So LAMB's authors have it (You et al., 2020): with a guard of the divisor the ratio of a weight that begins at 0
    would be 0, and that weight never move. What the length is multiplied by, a rate say, stays what it is.
    """
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    alone = facts.in_update and facts.op == "div" and all(one.numel == 1 for one in facts.origin.outputs)
    if not alone or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return None
    factors = quotients.factors(node.left)
    lengths = [one for one in factors if _is_length(facts, one)]
    if len(lengths) != 1 or not _is_sum_of_lengths(facts, node.right):
        return None
    above, below = lengths[0], node.right
    beside = "".join(parsing.written("{} * _", one)[:-1] for one in factors if one is not lengths[0])
    text = (
        "Where one of the two lengths is 0 take 1 for their ratio, as LAMB does: a ratio of 0 would leave the weight "
    )
    text += "as it is."
    code = beside + parsing.written("torch.where(({} > 0) & ({} > 0), {} / {}, 1.0)", above, below, above, below)
    return Suggestion(text, fitting.whole(facts.origin, code))


def kept_above(facts: Facts, why: str) -> Suggestion:
    """Say ``why`` a single number is 0, and keep it above that where the script's own text has it as a length."""
    name = quotients.below(facts.origin) or ""
    made = parsing.expression(facts.kind(name)) if name.isidentifier() else None
    root = None if made is None else quotients.root_of(made)
    squares = root is not None and any(word in ast.unparse(root) for word in ("pow(2)", "** 2", "square("))
    guarded = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min({_LEAST})")
    sized = isinstance(made, ast.BinOp) and "norm(" in ast.unparse(made) and kept.is_a_size(facts, made)
    if guarded is None or not (squares or sized):
        return Suggestion(f"{why}.")
    return Suggestion(f"{why}. It is a length, of what is 0 throughout: keep it above 0.", guarded)


def _is_length(facts: Facts, node: ast.expr) -> bool:
    made = meanings.behind(facts, node).node
    return any(fitting.target(made, op) is not None for op in _NORMS)


def _is_sum_of_lengths(facts: Facts, node: ast.expr) -> bool:
    """Whether it is a length, or one and another one times a decay, as LARS has it."""
    terms = [node.left, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else [node]
    return all(any(_is_length(facts, one) for one in quotients.factors(term)) for term in terms) and (
        len(terms) > 1 or _is_length(facts, node)
    )


def _layer(made: meanings.Made) -> str | None:
    """Return the layer of the origin's own object, or of a name, that makes the vectors."""
    called = made.node.func if isinstance(made.node, ast.Call) and made.inside else None
    own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
    return ast.unparse(called) if called is not None and (own or isinstance(called, ast.Name)) else None


def _guarded(line: str, name: str) -> str | None:
    for node in fitting.nodes_of(line) if line.isascii() else []:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_norm(node.right, name):
            last = node.right.end_col_offset
            if node.right.end_lineno == 1 and ast.unparse(node.left) == name:
                return f"{line[:last]}.clamp_min({_LEAST}){line[last:]}"
    return None


def _is_norm(node: ast.expr, name: str) -> bool:
    given = next((one for op in _NORMS if (one := fitting.target(node, op)) is not None), None)
    return given is not None and ast.unparse(given) == name

"""The binary cross-entropy, and a target beyond 0 and 1, with which it has no lower bound (reader side)."""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import POSSIBLE, Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import TensorFact, words

_OPS = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits"})
_WHOLE = 1e-6
_FORMS = {(-1.0, 1.0): "({} + 1) / 2", (1.0, 2.0): "{} - 1"}
_UNBOUNDED = "the loss has no lower bound then, and is driven down for ever"


def explain(facts: Facts) -> Cause | None:
    """Name targets that do not lie between 0 and 1, by their values, or by a loss below 0 that is written by hand."""
    if facts.source != "op" or facts.node is not None or not facts.finite_inputs:
        return None
    if facts.op in _OPS:
        return _of_targets(facts)
    name = target(facts.origin)
    low = min((one for one in _losses(facts) if math.isfinite(one)), default=0.0)
    if name is None or low >= -_WHOLE:
        return None
    text = f"the loss was {words.number(low)} before; a binary cross-entropy is never below 0 while its targets lie "
    check = parsing.written("assert (({} >= 0) & ({} <= 1)).all()", name, name)
    look = Suggestion(f"Look at {name}: does it lie between 0 and 1?", check)
    return Cause("domain_error", (f"{text}between 0 and 1",), (look,), POSSIBLE, story=True, leads=True)


def target(origin: Origin) -> str | None:
    """Return the y of a line with ``y * log(p)`` and ``(1 - y) * log(1 - p)``, ``None`` where it has not both."""
    nodes = fitting.nodes_of(origin.source or "")
    products = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    sides = [pair for node in products for pair in ((node.left, node.right), (node.right, node.left))]
    logged = [(other, given) for other, side in sides if (given := fitting.target(side, "log")) is not None]
    for one, given in logged:
        if any(_is_rest(other, given) and _is_rest(beside, one) for beside, other in logged):
            return ast.unparse(one)
    return None


def _is_rest(node: ast.expr, of: ast.expr) -> bool:
    """Whether ``node`` is 1 less the other."""
    less = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.left) in {"1", "1.0"}
    return less and isinstance(node, ast.BinOp) and ast.dump(node.right) == ast.dump(of)


def _losses(facts: Facts) -> list[float]:
    history = facts.history
    rows = () if history is None else zip(history.step, history.loss, strict=False)
    return [loss for step, loss in rows if loss is not None and step < facts.origin.step]


def _of_targets(facts: Facts) -> Cause | None:
    given = facts.origin.inputs[1] if len(facts.origin.inputs) > 1 else None
    if given is None or given.min is None or given.max is None:
        return None
    if given.min >= 0.0 and given.max <= 1.0:
        return None
    ends = f"{words.number(given.min)} to {words.number(given.max)}"
    text = f"the targets go from {ends}, beyond 0 and 1: {_UNBOUNDED}"
    told = Suggestion("Bring the targets to 0 and 1.", _brought(facts, given))
    return Cause("domain_error", (text,), (told,), story=True)


def _brought(facts: Facts, given: TensorFact) -> str:
    """Return the user's line with its targets between 0 and 1: of two classes by -1 and 1, or by 1 and 2."""
    form = _FORMS.get((given.min or 0.0, given.max or 0.0), "{}.clamp(0, 1)")
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    if found is None or not isinstance(call, ast.Call):
        return form.format("y")
    named = next((word.value for word in call.keywords if word.arg == "target"), None)
    part = named if named is not None else call.args[1] if len(call.args) > 1 else None
    line = None if part is None else fitting.line_of(facts.origin, found[0], part, form.format)
    return line or form.format("y")

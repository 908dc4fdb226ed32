"""What leads the argument of a logarithm below zero: weights that nothing keeps above it, or data (reader side)."""

from __future__ import annotations

import ast
from typing import TypeGuard

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.counts import kept as sizes
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

# Functions that are above zero whatever they are given.
_POSITIVE = ("exp", "exp2", "softplus", "sigmoid", "softmax")
_NODES = ("Exp", "Exp2", "Softplus", "Sigmoid", "Softmax")
_OF_POSITIVE = frozenset({"log", "log2", "log10", "log1p", "sqrt", "rsqrt"})
_FULL = "torch.nn.functional.softplus"
_DEEPEST, _MOST = 4, 4
LEARNT = Suggestion(
    f"It is made of weights: where nothing keeps these above zero, learn their logarithm, or let {_FULL} make it "
    "positive."
)
_LAYERS = frozenset({"Addmm", "Convolution", "Linear"})
_ARITHMETIC = frozenset(
    {"Div", "Mul", "Neg", "Add", "Sub", "Rsub"} | {"View", "Squeeze", "Unsqueeze", "Select", "Slice"}
)
_ANY_SIGN = f"which may have any sign: let {_FULL} make that positive, or let the model give its logarithm."


def of_trained(facts: Facts, op: str) -> Suggestion | None:
    """Say what to do about weights that the argument of the underlined ``op`` is made of; None where it is data.

    What an exponential or the like makes is above zero by itself: then it is something beside it that is not.
    """
    if by_batch(facts) is not None:
        return None
    given = _given(facts, op)
    kept, rest = _parts(facts, given)
    if not kept and not _of_positive(facts) and not any(map(_has_positive, _reached(facts, given, 0))):
        return _of_output(facts) or _above_a_number(given) or LEARNT
    if not kept or not rest or len(rest) > _MOST:
        return None
    several = len(kept) > 1
    above = f"{words.few(kept)} {'are' if several else 'is'} above zero by {'themselves' if several else 'itself'}"
    found = f"{above}: look at {words.few(rest)}" + ("." if len(rest) == 1 else ", which of them goes below.")
    return Suggestion(
        f"{found} What comes with the data is to be mended while it is loaded; of a weight learn the logarithm."
    )


def is_of_carried(facts: Facts, op: str) -> bool:
    """Whether what the argument is made of is written in the same block too, and read beyond it: by a loop's next turn.

    Then it is that which has to be above zero: what is derived of it here may be bounded for nothing.
    """
    given, around = _given(facts, op), facts.around
    made = facts.meaning(given.id) if isinstance(given, ast.Name) else None
    node = None if made is None or not made.inside else parsing.expression(made.text)
    beyond = set() if around is None or node is None else set(around.outlive) & _names(node)
    own = facts.origin.line or 0
    behind = [one.text for one in (around.block if around is not None else ()) if one.line > own]
    stored = {one.id for text in behind for one in fitting.nodes_of(text) if _is_stored(one)}
    return bool(beyond & stored)


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _above_a_number(node: ast.expr | None) -> Suggestion | None:
    """Say of ``1 + a`` what a must stay above: it may well be negative, and so may the weights that it is made of."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    sides = ((node.left, node.right), (node.right, node.left))
    found = next(((one.value, rest) for one, rest in sides if isinstance(one, ast.Constant)), None)
    if found is None or not isinstance(found[0], int | float) or found[0] <= 0 or isinstance(found[1], ast.Constant):
        return None
    number, rest = words.number(float(found[0])), ast.unparse(found[1])
    return Suggestion(
        f"{rest} is made of weights, which may have any sign, but is to stay above -{number}: let the model make it "
        f"so, by weights derived from those that it learns (-{number} + {_FULL}(a) lies above -{number} for any a)."
    )


def _of_output(facts: Facts) -> Suggestion | None:
    """Say so where a layer's own output went into it, by sums, products and quotients at most: that is no weight."""
    nodes = facts.extra.get("made_by")
    made = [str(node).partition("Backward")[0] for node in nodes] if isinstance(nodes, list) else []
    if next((node for node in made if node not in _ARITHMETIC), None) not in _LAYERS:
        return None
    what = "the model's output" if facts.origin.phase == "loss" else "what a layer gives"
    return Suggestion(f"It is made of {what}, {_ANY_SIGN}")


def by_batch(facts: Facts) -> Warned | None:
    """Return what says that the batch of this very step is unlike those before, where it made what is below zero.

    It is the script's own text that leads from the logarithm, or the root, to it.
    """
    if not facts.outputs_nan or not facts.finite_inputs or facts.op not in _OF_POSITIVE or facts.node is not None:
        return None
    names = {name for part in _reached(facts, _given(facts, facts.op), 0) for name in _names(part)}
    seen = (one for one in facts.warned if (one.slug, one.step) == ("batch_outlier", facts.origin.step))
    return next((one for one in seen if one.name in names), None)


def _given(facts: Facts, op: str) -> ast.expr | None:
    found = fitting.parsed(facts.origin)
    return None if found is None else fitting.target(found[1], op)


def _of_positive(facts: Facts) -> bool:
    """Whether autograd is known to have taken the like of an exponential on the way, though the text shows none."""
    nodes = facts.extra.get("made_by")
    return isinstance(nodes, list) and any(str(node).partition("Backward")[0] in _NODES for node in nodes)


def _has_positive(node: ast.expr) -> bool:
    parts = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(fitting.target(part, one) is not None for part in parts for one in _POSITIVE)


def _reached(facts: Facts, node: ast.expr | None, depth: int) -> list[ast.expr]:
    """Return an expression, and those that the names in it stand for."""
    if node is None or depth > _DEEPEST:
        return []
    made = [meaning for name in sorted(_names(node)) if (meaning := facts.meaning(name)) is not None]
    inner = [parsing.expression(one.text) for one in made]
    return [node, *(part for one in inner for part in _reached(facts, one, depth + 1))]


def _names(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _parts(facts: Facts, node: ast.expr | None) -> tuple[list[str], list[str]]:
    """Return what an expression is made of by sums, products and quotients: what is above zero by itself, and the rest.

    Both are told as they stand in the line, and where a name stands for more than a number, in what it stands for.
    """
    kept: dict[str, None] = {}
    rest: dict[str, None] = {}
    _sort(facts, node, kept, rest, 0)
    return list(kept), list(rest)


def _sort(facts: Facts, node: ast.expr | None, kept: dict[str, None], rest: dict[str, None], depth: int) -> None:
    if node is None or isinstance(node, ast.Constant):
        return
    if isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            _sort(facts, side, kept, rest, depth)
        return
    made = meanings.behind(facts, node)
    if any(fitting.target(made.node, one) is not None for one in _POSITIVE):
        kept[ast.unparse(node)] = None
    elif isinstance(made.node, ast.BinOp) and made.inside and depth < _DEEPEST:
        _sort(facts, made.node, kept, rest, depth + 1)
    elif isinstance(made.node, ast.Call) and sizes.is_a_size(facts, made.node):
        return  # a sum of exponentials under a mask, say: it is not below zero, and no weight
    else:
        rest[ast.unparse(_looked_at(node))] = None


def _looked_at(node: ast.expr) -> ast.expr:
    """Return what an index picks a part of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node

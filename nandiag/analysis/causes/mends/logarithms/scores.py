"""The logarithm of a softmax, a sigmoid or an exponential in one step with it, in the user's own line (reader side).

A bound in its place would be finite too, and have no gradient where the share vanished: nothing would be trained there.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends import variances
from nandiag.analysis.causes.mends.script import bounding, fitting, meanings, parsing
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import Meaning, Statement

_ONE = "Take both in one step, which is finite where the scores are: the logarithm has the scores before it."
_ITSELF = "It is taken of an exponential that vanished: take the number itself that this is of."
SIGMOIDS, SOFTMAX = ("sigmoid", "expit"), ("softmax",)
_ONES = ("1", "1.0")


def in_one_step(facts: Facts, op: str, guard: str) -> Suggestion | None:
    """Return the user's line with the logarithm of the scores in one step, where its text shows what made its input.

    So are other logarithms of the line that can be; the rest of them have the ``guard``.
    """
    if op != "log":
        return None
    facts = _with_names_ahead(facts)
    beside = bounding.mirrored(bounding.beside(_others(facts), op, guard), op)
    line = _of_scores(replace(facts, origin=beside))
    return None if line is None else Suggestion(_why(facts, op, line), line)


def _of_scores(facts: Facts) -> str | None:
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], "log")
    held: list[ast.expr] = []
    text = None if part is None else meanings.swapped(facts, part, lambda node: _one_step(facts, node, held))
    line = None if text is None else fitting.whole(facts.origin, text)
    if found is None or line is None or not held or meanings.is_same_again(held[0]):
        return line
    return _named_first(facts, ast.unparse(held[0]), line) if ast.unparse(held[0]) not in found[0] else line


def _others(facts: Facts) -> Origin:
    """Return the origin with the logarithms beside the underlined one in one step, where they can be."""
    source = (facts.origin.source or "").strip()
    calls = [node for node in fitting.nodes_of(source) if isinstance(node, ast.Call) and source.isascii()]
    swapped: dict[str, str] = {}
    for call in calls:
        part, held = fitting.target(call, "log"), list[ast.expr]()
        text = None if part is None else meanings.swapped(facts, part, lambda node, to=held: _one_step(facts, node, to))  # type: ignore[misc]
        if text is not None and all(map(meanings.is_same_again, held)):
            swapped[ast.get_source_segment(source, call) or ""] = text
    places: list[ast.expr] = [one for one in calls if ast.get_source_segment(source, one) in swapped]
    return fitting.others(facts.origin, places, lambda text: swapped.get(text, text))


def _with_names_ahead(facts: Facts) -> Facts:
    """Return the facts with what statements ahead give to the names of the line.

    A call that makes another name is taken to leave what it is given as it is.
    """
    around, site = facts.around, facts.look.site if facts.look is not None else None
    if around is None or site is None or facts.look is None or around.handed is not None:
        return facts
    ahead = [one for one in around.block if one.line < (facts.origin.line or 0)]
    known = {one.name for one in around.names}
    named = {one.id for one in fitting.nodes_of(facts.origin.source or "") if isinstance(one, ast.Name)} - known
    more = [made for name in sorted(named) if (made := _given(name, ahead, facts.origin.file or "")) is not None]
    site = replace(site, around=replace(around, names=(*around.names, *more)))
    return replace(facts, look=replace(facts.look, site=site))


def _given(name: str, ahead: list[Statement], file: str) -> Meaning | None:
    """Return what the last statement ``ahead`` that writes ``name`` gives it, where it would be the same now."""
    written: set[str] = set()
    parsed = [parsing.statement(one.text) for one in ahead]
    for one, node in zip(reversed(ahead), reversed(parsed), strict=True):
        stored = set() if node is None else _names(node, ast.Store)
        if name in stored and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            same = len(node.targets) == 1 and not _names(node.value, ast.Load) & written
            return Meaning(name, ast.unparse(node.value), file, one.line) if same else None
        if node is None or name in stored or isinstance(node, ast.AugAssign | ast.Expr) or _in_place(node):
            return None
        into = _written_into(node)
        if any(name in _names(made, ast.Load) for made in _of(parsed, into)) or name in into:
            return None
        written |= stored | into
    return None


def _written_into(node: ast.stmt) -> set[str]:
    """Return the names of what a part of is written, ``t[3] = 0.0``, or that a call within a block may write into."""
    parts = [one for one in ast.walk(node) if isinstance(one, ast.Subscript | ast.Attribute)]
    stored = {name for one in parts if isinstance(one.ctx, ast.Store) for name in _names(one.value, ast.Load)}
    calls = (one.value for one in ast.walk(node) if isinstance(one, ast.Expr) and one is not node)
    return stored.union(*(_names(one, ast.Load) for one in calls))


def _of(parsed: list[ast.stmt | None], names: set[str]) -> list[ast.expr]:
    """Return what the statements give to the names: of a view of another tensor that one is written into."""
    return [one.value for one in parsed if isinstance(one, ast.Assign) and _names(one, ast.Store) & names]


def _in_place(node: ast.stmt) -> bool:
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr.endswith("_") for one in calls)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


def _named_first(facts: Facts, scores: str, line: str) -> str | None:
    """Return the line that makes the probabilities, with a name for the scores, and ``line`` with that name.

    A model that is called once more drops out, and counts, once more.
    """
    made = meanings.holding(facts, scores)
    if made is None or "scores" in f"{made.text} {line}":
        return None
    first = f"scores = {scores}; {made.name} = {made.text.replace(scores, 'scores')}  # line {made.line}"
    return f"{first}\n{line.replace(scores, 'scores')}"


def _one_step(facts: Facts, node: ast.expr, held: list[ast.expr]) -> str | None:
    """Return log(sigmoid(z)), log(1 - sigmoid(z)), log(softmax(z)) or log(exp(z)) in one step; z goes to ``held``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.left) in {"1", "1.0"}:
        inner = meanings.behind(facts, node.right)
        scores = _given_to(inner.node, SIGMOIDS) if inner.inside else None
        if scores is not None:
            held.append(scores)
            return f"torch.nn.functional.logsigmoid(-{fitting.bracketed(scores)})"
        return _squashed(facts, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _times(facts, node, held)
    scores = _given_to(node, (*SIGMOIDS, "exp"))
    if scores is not None:
        held.append(scores)
        of_sigmoid = _given_to(node, SIGMOIDS) is not None
        return f"torch.nn.functional.logsigmoid({ast.unparse(scores)})" if of_sigmoid else fitting.bracketed(scores)
    scores = _given_to(node, SOFTMAX)
    if scores is None or not isinstance(node, ast.Call):
        return None
    held.append(scores)
    rest = [ast.unparse(one) for one in (*node.args, *node.keywords) if one is not scores]
    return f"torch.log_softmax({', '.join((ast.unparse(scores), *rest))})" if rest else None


def _times(facts: Facts, node: ast.BinOp, held: list[ast.expr]) -> str | None:
    """Return the logarithm of one of the above times a factor, which stands for itself, as a sum."""
    for factor, rest in ((node.left, node.right), (node.right, node.left)):
        form = _one_step(facts, rest, held) if isinstance(factor, ast.Name | ast.Attribute | ast.Constant) else None
        if form is not None:
            alone = ast.unparse(factor) in _ONES
            return form if alone else f"({form} + torch.as_tensor({ast.unparse(factor)}).log())"
    return None


def _squashed(facts: Facts, square: ast.expr) -> str | None:
    """Return log(1 - tanh(u)**2) of u, where ``square`` is that of a tanh."""
    inner = meanings.behind(facts, variances.base(square)) if variances.squared(square) else None
    given = _given_to(inner.node, ("tanh",)) if inner is not None and inner.inside else None
    if given is None or not meanings.is_same_again(given):
        return None
    u = fitting.bracketed(given)
    return f"2 * ({_LOG_2} - {u} - torch.nn.functional.softplus(-2 * {u}))"


_LOG_2 = "0.6931472"
_EXACT = "It is taken of 1 - tanh(u)**2: there is a form that is exact."


def _why(facts: Facts, op: str, code: str) -> str:
    """Say why the logarithm is taken in one step, as ``code`` does."""
    made = meanings.into(facts, op)
    of_exponential = made is not None and _given_to(made.node, ("exp",)) is not None
    return _EXACT if _LOG_2 in code else _ITSELF if of_exponential else _ONE


def _given_to(node: ast.expr, ops: tuple[str, ...]) -> ast.expr | None:
    return next((given for op in ops if (given := fitting.target(node, op)) is not None), None)

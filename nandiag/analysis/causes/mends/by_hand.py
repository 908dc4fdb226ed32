"""The scale of a density written out by hand: its logarithm is taken, and it divides (reader side).

Below a bound that does for the logarithm alone the quotient would be huge, and quotients that are left out leave the
logarithm as it is. The bound here is torch's: the ``eps`` of ``GaussianNLLLoss``, 1e-6, for what divides as it stands;
where it is squared, the root of that. Where the model makes it, and it is squared, one over that would be a loss beside
which all others are nothing: it is a hundredth.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import Around

_IN_LINE = (
    "{0} is divided by, and its logarithm is taken: keep it away from zero in both places, by as much as is of use."
)
_BEFORE = "{0} is divided by, and its logarithm is taken: keep it away from zero for both, before this line."
_LOGS = ("log", "log2", "log10")


def scale(facts: Facts) -> Suggestion | None:
    """Return the user's line with the scale guarded, where the text shows that it is one; else ``None``."""
    found, line = fitting.parsed(facts.origin), (facts.origin.source or "").strip()
    if found is None or "float16" in {dtype_of(fact) for fact in facts.origin.inputs}:
        return None
    texts = (line, *_own(facts.around))
    part = next((one for one in _parts(found[1]) if _is_scale(texts, one)), None)
    if part is None:
        return None
    name, least = ast.unparse(part), _least(facts, texts, part)
    if _is_scale((line,), part):
        code = fitting.line_of(facts.origin, found[0], part, lambda inner: f"{inner}.clamp_min({least})")
        return None if code is None else Suggestion(_IN_LINE.format(name) + _of_relu(facts, least), code)
    if not isinstance(part, ast.Name):
        return None
    return Suggestion(_BEFORE.format(name) + _of_relu(facts, least), f"{name} = {name}.clamp_min({least})\n{line}")


def _least(facts: Facts, texts: tuple[str, ...], part: ast.expr) -> str:
    if not any(_squares(text, part) for text in texts):
        return "1e-6"
    return "1e-2" if facts.extra.get("of_weights") is True else "1e-3"


def _of_relu(facts: Facts, least: str) -> str:
    """Say how the model is to make it, where a relu did."""
    divides = facts.op in {"div", "reciprocal"}
    nodes = facts.extra.get("below_by" if divides and len(facts.origin.inputs) > 1 else "made_by")
    made = str(nodes[0]) if isinstance(nodes, list) and nodes else ""
    return _SOFTER.format(least) if made.startswith("Relu") else ""


_SOFTER = " A relu made it, and where that is 0 no gradient leads back: better is softplus(...) + {0} in its place."


def _own(around: Around | None) -> Iterator[str]:
    """Yield the statements of the origin's own function: behind its ``return`` those of a caller may come."""
    told = () if around is None else around.block
    yield from takewhile(lambda text: not text.startswith("return"), (one.text for one in told))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the names that the underlined expression takes the logarithm of, or that make its divisor."""
    below = quotients.divided_by(node)
    given = [one for op in _LOGS if (one := fitting.target(node, op)) is not None]
    bases = [*given, *(() if below is None else fitting.bases(below))]
    yield from (one for one in bases if isinstance(one, ast.Name | ast.Attribute))


def _is_scale(texts: tuple[str, ...], part: ast.expr) -> bool:
    divides = any(fitting.breakable(text, part, poles=False) for text in texts)
    return divides and any(_is_given(text, part, _LOGS) for text in texts)


def _squares(text: str, part: ast.expr) -> bool:
    """Whether a statement squares it, or what is divided by it: then it is a deviation, and no variance."""
    return _is_given(text, part, fitting.SQUARES) or any(_is_below(one, part) for one in _given(text, fitting.SQUARES))


def _is_below(node: ast.expr, part: ast.expr) -> bool:
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    return divides and isinstance(node, ast.BinOp) and ast.dump(node.right) == ast.dump(part)


def _is_given(text: str, part: ast.expr, ops: tuple[str, ...]) -> bool:
    """Whether ``part`` as it stands goes into one of the ``ops`` in a statement."""
    return any(ast.dump(one) == ast.dump(part) for one in _given(text, ops))


def _given(text: str, ops: tuple[str, ...]) -> list[ast.expr]:
    nodes = [node for node in fitting.nodes_of(text) if isinstance(node, ast.expr)]
    return [one for node in nodes for op in ops if (one := fitting.target(node, op)) is not None]

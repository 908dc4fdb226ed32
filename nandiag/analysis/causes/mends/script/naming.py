"""A part of the user's line that a mend needs twice gets a name in a statement before it (reader side).

A model that is called once more takes its time again, drops out otherwise, and counts once more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing
from nandiag.analysis.report import Origin

_OWN_NAMES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def is_cheap(node: ast.expr) -> bool:
    """Whether an expression may stand twice: it only looks at values, or computes a few element by element."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    looks = all(isinstance(one.func, ast.Attribute) and one.func.attr in meanings.VIEWS for one in calls)
    return looks and not any(isinstance(one, ast.MatMult) for one in ast.walk(node))


def before(origin: Origin, name: str, text: str, line: str | None) -> str | None:
    """Return the user's ``line``, which has ``name`` for ``text`` in it, behind the statement that gives it that name.

    ``None`` where no statement can stand before it, or where the name is another thing's.
    """
    source = origin.source or ""
    names = {one.id for one in fitting.nodes_of(source) if isinstance(one, ast.Name)}
    if line is None or name in names or is_within_another(origin):
        return None
    return ahead(origin, f"{name} = {fitting.unbracketed(text)}", line, "\n")


def free(facts: Facts, names: Sequence[str], *, begins: bool = False) -> str:
    """Return the first of ``names`` that nothing of the script is seen to be called by; the last where all are.

    What a mend names stands beside the script's own lines. ``begins``: it is how names begin, as ``pruned_v`` does.
    """
    around, texts = facts.around, [facts.origin.source or "", *facts.uses]
    if around is not None:
        texts += [f"{one.name} {one.text}" for one in (*around.names, *around.kinds)]
        texts += [*(one.name for one in around.written), *(one.text for one in around.block), *around.outlive]
    text, end = " ".join(texts), "_" if begins else r"\b"
    return next((one for one in names if re.search(rf"\b{one}{end}", text) is None), names[-1])


def given(origin: Origin) -> str | None:
    """Return what the line calls the tensor that is underlined, or written into, once it has run; ``None`` where not.

    That is what is assigned it, and the x of ``x[i] = ...``, ``x += ...`` and ``x[i].fill_(...)``.
    """
    source = (origin.source or "").strip()
    part = parsing.statement(source)
    if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and isinstance(part.value.func, ast.Attribute):
        return _whole(part.value.func.value) if part.value.func.attr.endswith("_") else None
    if isinstance(part, ast.AugAssign):
        return _whole(part.target)
    if not isinstance(part, ast.Assign) or len(part.targets) > 1:
        return None
    found = fitting.parsed(origin)
    written = found is not None and ast.unparse(part.targets[0]) == ast.unparse(found[1])
    if isinstance(part.targets[0], ast.Subscript) and (written or _IN_PLACE.search(origin.op or "") is not None):
        return _whole(part.targets[0])
    for target, value in _pairs(part.targets[0], part.value) if found is not None else ():
        if found is not None and ast.get_source_segment(source, _looked_at(value)) == found[0]:
            return ast.unparse(target) if not isinstance(target, ast.Starred) else None
    return None


_IN_PLACE = re.compile(r"_(?:\.|$)")
_SAME = meanings.VIEWS | {"float", "double", "half", "to", "clone", "detach", "cpu", "cuda"}


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return list(zip(target.elts, values, strict=True)) if len(values) == len(target.elts) else []


def _looked_at(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
        node = node.func.value
    return node


def _whole(node: ast.expr) -> str | None:
    """Return the name of what an index picks a part of; what lies under a word (``batch["x"]``) has no other name."""
    while isinstance(node, ast.Subscript) and not isinstance(getattr(node.slice, "value", None), str):
        node = node.value
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else None


def ahead(origin: Origin, statement: str, line: str, between: str = "; ") -> str | None:
    """Return ``line``, which is the user's with a mend in it, behind a simple ``statement``; ``None`` where none fits.

    What is written behind a condition in its own line (``if done: x = ...``) has it there: nothing compound may follow
    a semicolon, and what the condition guards need not hold before it.
    """
    source = (origin.source or "").strip()
    first = _guarded(source)
    if first is None:
        return f"{statement}{between}{line}" if may_follow_another(source) else None
    place = (origin.column or (0, 0))[0] - len(origin.source or "") + len((origin.source or "").lstrip())
    known = place >= first and line[:first] == source[:first]
    return f"{line[:first]}{statement}; {line[first:]}" if known else None


def _guarded(source: str) -> int | None:
    """Return where the statement begins that stands behind a condition, or another head, in the same line."""
    part = parsing.statement(source)
    body = getattr(part, "body", None)
    within = isinstance(body, list) and body[0].lineno == 1 and source.isascii()
    return body[0].col_offset if isinstance(body, list) and within else None


def may_follow_another(source: str) -> bool:
    """Whether it begins a statement, so that another may stand before: ``x = ...``, ``x[i] = ...``, ``x.y_(...)``.

    Any other call may be an argument of one that begins further up, and so may ``x=...``.
    """
    if fitting.NAMED.match(source.strip()):
        return True
    part = parsing.statement(source.strip())
    if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
        called = part.value.func
        return isinstance(called, ast.Attribute) and called.attr.endswith("_")
    if isinstance(part, ast.AugAssign):
        return True
    return isinstance(part, ast.Assign) and not isinstance(part.targets[0], ast.Name)


def is_within_another(origin: Origin) -> bool:
    """Whether the expression belongs to a function or a comprehension that begins in its line: its names do too."""
    source, column = origin.source or "", origin.column or (0, 0)
    place = column[0] - (len(source) - len(source.lstrip()))
    inner = [node for node in fitting.nodes_of(source) if isinstance(node, _OWN_NAMES) and node.lineno == 1]
    return any(node.col_offset <= place < (node.end_col_offset or 0) for node in inner)

"""What the function of an expression hands back, where that is known before the expression runs (worker).

Who leaves such a function early must hand back the same: its caller goes on with it.
"""

from __future__ import annotations

import ast

from nandiag.runtime.evidence.around.again import within
from nandiag.runtime.evidence.around.place import Place, root
from nandiag.runtime.evidence.around.unchanged import bound

_PLAIN = (ast.Name, ast.Attribute, ast.Load)


def ends(place: Place) -> str | None:
    """Return what each ``return`` of the function gives, empty where none gives anything; ``None`` where it differs."""
    scope = place.scope
    inner = list(within(scope)) if isinstance(scope, ast.FunctionDef) else []
    if not inner or any(isinstance(one, ast.Lambda) and one in place.nodes for one in inner):
        return None
    if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inner):
        return None
    given = {_text(one.value) for one in inner if isinstance(one, ast.Return)}
    if given <= {""}:
        return ""
    text = given.pop() if len(given) == 1 else ""
    return text if isinstance(scope, ast.FunctionDef) and text and _is_known(scope, text, inner) else None


def _text(value: ast.expr | None) -> str:
    return "" if value is None or (isinstance(value, ast.Constant) and value.value is None) else ast.unparse(value)


def _is_known(scope: ast.FunctionDef, text: str, inner: list[ast.AST]) -> bool:
    """Whether ``text`` names what the function was handed, or an attribute of it, and the function sets neither."""
    node = ast.parse(text, mode="eval").body
    own = {ast.unparse(one) for one in inner if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load)}
    if text in own or any(not isinstance(one, _PLAIN) for one in ast.walk(node)):
        return False
    handed = {one.arg for one in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)}
    return root(node) in handed - {name for one in inner for name in bound(one)}

"""The mean of what may be empty, as a sum over a count of at least 1, in the user's own line (reader side)."""

from __future__ import annotations

import ast
from dataclasses import replace

from nandiag.analysis.causes.mends.script import fitting, naming, parsing
from nandiag.analysis.report import Origin

# These take a target of another shape than that of what they are given, and make as many values as both together.
_BROADCAST = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_LOSSES = _BROADCAST | _OF_CLASSES | {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
_SPREADS = ("std", "var")


def counted(origin: Origin) -> str | None:
    """Return the user's line with a sum divided by a count of at least 1 for ``x.mean()`` or ``F.loss(z, y)``.

    Other means of the same in its line are as empty: each is mended. ``None`` where a spread of it stands there too.
    """
    found = fitting.parsed(origin)
    call = None if found is None else found[1]
    if found is None or not isinstance(call, ast.Call):
        return None
    if any(word.arg in {"reduction", "weight"} for word in call.keywords):
        return None
    averaged = fitting.target(call, "mean")
    if averaged is not None:
        return _once(origin, averaged, _mended(origin, call, averaged))
    loss = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if loss not in _LOSSES or len(call.args) != 2 or any(word.arg == "dim" for word in call.keywords):
        return None
    if loss in _BROADCAST:
        return _of_both(origin, found[0], call)
    target, cheap = call.args[1], naming.is_cheap(call.args[1])
    name = fitting.bracketed(target) if cheap else "target"
    text = found[0] if cheap else fitting.put(found[0], target, lambda _: name)
    ignored = next((word.value for word in call.keywords if word.arg == "ignore_index"), None)
    kept = "" if ignored is None else parsing.written("({} != {}).sum().clamp_min(1)", name, ignored)
    count = kept or f"max({name}.numel(), 1)"
    line = fitting.whole(origin, f"{_reduced(text, 'sum')} / {count}")
    return line if cheap else naming.before(origin, name, ast.unparse(target), line)


def _reduced(text: str, how: str) -> str:
    return f'{text[:-1].rstrip().rstrip(",")}, reduction="{how}")'


def _of_both(origin: Origin, text: str, call: ast.Call) -> str | None:
    """Return the line with the loss's sum over the count of the values that both of its arguments make together."""
    if all(map(naming.is_cheap, call.args)):
        both = " - ".join(map(fitting.bracketed, call.args))
        return fitting.whole(origin, f"{_reduced(text, 'sum')} / max(({both}).numel(), 1)")
    line = fitting.whole(origin, "each.sum() / max(each.numel(), 1)")
    return naming.before(origin, "each", _reduced(text, "none"), line)


def without(origin: Origin) -> str | None:
    """Return the user's line with 0, of which the gradient is 0, for the loss of no targets that a module takes."""
    found = fitting.parsed(origin)
    call = None if found is None else found[1]
    named = (origin.module_class or "").endswith("Loss")
    if found is None or not named or not isinstance(call, ast.Call) or len(call.args) != 2 or call.keywords:
        return None
    given, target = call.args
    if not naming.is_cheap(target) or isinstance(given, ast.Starred):
        return None
    rest = f"0 * {fitting.bracketed(given)}.sum()"
    return fitting.whole(origin, f"{found[0]} if {fitting.bracketed(target)}.numel() else {rest}")


def unless_ignored(origin: Origin, ignored: str) -> str | None:
    """Return the user's line with 0 for the loss of targets that are all ``ignored``: a criterion keeps its options."""
    found = fitting.parsed(origin)
    call = None if found is None else found[1]
    if found is None or not isinstance(call, ast.Call) or len(call.args) < 2:
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in _OF_CLASSES and origin.module_class not in _CRITERIA:
        return None
    given, target = map(_as_it_was, call.args[:2])
    if isinstance(given, ast.Starred) or not naming.is_cheap(target):
        return None
    some = parsing.written("({} != {}).any()", target, ignored)
    return fitting.whole(origin, f"{found[0]} if {some} else 0 * {fitting.bracketed(given)}.sum()")


_CRITERIA = frozenset({"CrossEntropyLoss", "NLLLoss"})


def _as_it_was(node: ast.expr) -> ast.expr:
    """Return what only has another shape here."""
    while (of := next((one for op in _SHAPES if (one := fitting.target(node, op)) is not None), None)) is not None:
        node = of
    return node


_SHAPES = ("view", "reshape", "flatten", "contiguous", "transpose", "permute", "float", "long")


def _once(origin: Origin, node: ast.expr, line: str | None) -> str | None:
    """Return the line with a name for what stands in it twice, but where that only looks at other values."""
    if line is None or naming.is_cheap(_counted_by(node)):
        return line
    return naming.before(origin, "values", ast.unparse(node), line.replace(fitting.bracketed(node), "values"))


def _mended(origin: Origin, call: ast.Call, averaged: ast.expr) -> str | None:
    line = origin.source or ""
    nodes = fitting.nodes_of(line) if line.isascii() else []
    calls = [one for one in nodes if isinstance(one, ast.Call) and _holds(one, averaged)]
    if any(fitting.target(one, op) is not None for one in calls for op in _SPREADS):
        return None
    text, beside = _over_count(call), origin
    for one in sorted(calls, key=lambda one: -one.col_offset):
        other = _over_count(one)
        beside = beside if other is None else _put(beside, one, other)
    if text is None:
        return None
    text = _as_one(beside.source or "", *(beside.column or (0, 0)), text)
    return fitting.whole(beside, text)


def _as_one(line: str, first: int, last: int, quotient: str) -> str:
    """Return the quotient, in brackets where what stands beside it would take it apart."""
    apart = line[:first].rstrip().endswith(_BEFORE) or line[last:].lstrip().startswith(_BEHIND)
    return f"({quotient})" if apart else quotient


_BEFORE, _BEHIND = ("/", "%", "@", "**"), ("**", ".", "[", "@")


def _holds(call: ast.Call, averaged: ast.expr) -> bool:
    """Whether the call reduces what is made of ``averaged`` alone, element by element."""
    given = next((one for op in ("mean", *_SPREADS) if (one := fitting.target(call, op)) is not None), None)
    return given is not None and _elementwise(given, ast.dump(averaged))


def _elementwise(node: ast.expr, same: str) -> bool:
    if ast.dump(node) == same:
        return True
    if isinstance(node, ast.BinOp):
        left, right = node.left, node.right
        return _elementwise(left, same) or (isinstance(left, ast.Constant) and _elementwise(right, same))
    of = next(
        (one for op in ("abs", "square", "pow", "log", "exp") if (one := fitting.target(node, op)) is not None), None
    )
    return of is not None and _elementwise(of, same)


_EACH = ("square", "abs", "log", "exp", "sqrt", "float", "detach")


def _counted_by(node: ast.expr) -> ast.expr:
    """Return what has as many values, and need not be computed twice: the y of ``y.pow(2)``."""
    inner = node
    while not naming.is_cheap(inner):
        of = next((one for op in _EACH if (one := fitting.target(inner, op)) is not None), _raised(inner))
        if of is None:
            return node
        inner = of
    return node if isinstance(inner, ast.Constant) else inner


def _raised(node: ast.expr) -> ast.expr | None:
    """Return what is raised to a number: to a tensor it has as many values as both together."""
    given = fitting.target(node, "pow")
    words = [*node.args, *(word.value for word in node.keywords)] if isinstance(node, ast.Call) else []
    by = [one for one in words if one is not given] or ([node.right] if isinstance(node, ast.BinOp) else [])
    return given if by and all(map(_is_constant, by)) else None


def _is_constant(node: ast.expr) -> bool:
    number = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(number, ast.Constant) and isinstance(number.value, int | float)


def _over_count(call: ast.Call) -> str | None:
    """Return the mean as a sum over a count; ``None`` where its words are not those of a plain one."""
    averaged = fitting.target(call, "mean")
    if averaged is None:
        return None
    given = call.args if isinstance(call.func, ast.Attribute) and call.func.value is averaged else call.args[1:]
    dims = [*given[:1], *(word.value for word in call.keywords if word.arg == "dim")]
    kept = [word for word in call.keywords if word.arg == "keepdim"]
    if len(given) > 1 or len(dims) + len(kept) != len(given) + len(call.keywords) or len(dims) > 1:
        return None
    text, words = fitting.bracketed(averaged), ", ".join(ast.unparse(one) for one in (*given, *call.keywords))
    by = fitting.bracketed(_counted_by(averaged))
    if not dims:
        return None if kept else f"{text}.sum() / max({by}.numel(), 1)"
    number = dims[0].operand if isinstance(dims[0], ast.UnaryOp) else dims[0]
    whole = isinstance(number, ast.Constant) and type(number.value) is int
    return f"{text}.sum({words}) / max({by}.size({ast.unparse(dims[0])}), 1)" if whole else None


def _put(origin: Origin, call: ast.Call, text: str) -> Origin:
    """Return the origin with ``text`` for a call of its line other than the underlined one."""
    line, column = origin.source or "", origin.column or (0, 0)
    indent = len(line) - len(line.lstrip())
    first, last = call.col_offset + indent, (call.end_col_offset or 0) + indent
    if (first < column[1] and last > column[0]) or call.lineno != 1 or call.end_lineno != 1:
        return origin
    longer = line[:first] + _as_one(line, first, last, text) + line[last:]
    moved = len(longer) - len(line) if last <= column[0] else 0
    return replace(origin, source=longer, column=(column[0] + moved, column[1] + moved))

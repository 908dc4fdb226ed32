"""Whether what numpy went wrong with was bad before: then the line that it complains of is none that began it (worker).

An infinity minus an infinity is NaN, which numpy complains of; the line to mend is the one that made the infinities.
When numpy complains, the values that it was given can still be looked at where the script has names for them.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

from nandiag.runtime.evidence.around.place import place_of
from nandiag.runtime.frames import USER, Frame, kind_of
from nandiag.runtime.guard import disarm
from nandiag.runtime.numeric.into.outs import called, given, outs

Kept = TypeVar("Kept")
_LARGEST = 1 << 22
_MOST_FRAMES = 8
# Who holds the names of a frame: itself, the function that asks, and the question how many there are.
_OURS = 3
UNKNOWN = object()
# What these give need not be what they are given: bounds, choices, and what leaves NaN out.
_CHOOSE = frozenset({
    "where", "nan_to_num", "clip", "maximum", "minimum", "fmax", "fmin", "select", "choose", "isfinite", "isnan",
    "isinf",
})  # fmt: skip
# These make NaN of infinities alone.
_OF_INFINITIES = frozenset({"add", "subtract", "multiply"})
_NOT_TAKEN = (ast.Compare, ast.IfExp, ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)


def is_fed(said: str, frame: FrameType | None) -> bool:
    """Whether what numpy's arithmetic below ``frame`` was given is known to be bad, as it ``said`` so. Never raises."""
    kind, _, op = said.partition(" encountered in ")
    if kind == "invalid value" and op.removeprefix("scalar ") in _OF_INFINITIES:
        return True
    try:
        return any(map(_is_bad, _given(frame)))
    except Exception as error:  # whatever the script has under its names
        disarm("operands", error)
        return False


def began(heard: Sequence[tuple[Kept, Frame | None, bool]]) -> list[Kept]:
    """Return of places that numpy complained of, in their order, those that were not fed by another; all if none is.

    Each comes with its frame, and whether all that it was seen to go wrong with was fed. One expression that a function
    has twice counts once.
    """
    own: list[tuple[Kept, Frame | None]] = []
    for one, frame, fed in heard:
        if not fed and not any(_is_above(frame, before) or _is_alike(frame, before) for _, before in own):
            own.append((one, frame))
    return [one for one, _ in own] or [one for one, _, _ in heard]


def _is_above(frame: Frame | None, before: Frame | None) -> bool:
    """Whether the expression of ``frame`` takes what that of ``before`` gives."""
    outer, inner = expression(frame), expression(before)
    if frame is None or before is None or frame.code is not before.code or outer is None or inner is None:
        return False
    return any(_ends(one) == _ends(inner) and type(one) is type(inner) for one in _operands(outer))


def _is_alike(frame: Frame | None, before: Frame | None) -> bool:
    one, other = expression(frame), expression(before)
    same = frame is not None and before is not None and frame.code is before.code
    return same and one is not None and other is not None and ast.dump(one) == ast.dump(other)


def expression(frame: Frame | None) -> ast.AST | None:
    """Return the expression that a frame runs, where its file has a text."""
    place = None if frame is None else place_of(frame)
    return None if place is None else place.nodes[-1]


def _ends(node: ast.AST) -> tuple[int | None, ...]:
    return tuple(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def _given(frame: FrameType | None) -> Iterator[Any]:
    """Yield what the script's own expression takes, and what the libraries' functions beneath it were given."""
    for _ in range(_MOST_FRAMES):
        if frame is None or frame.f_code.co_name.lstrip("_").startswith("nan"):
            return  # what leaves NaN out may be given it
        if kind_of(frame.f_code.co_filename) == USER:
            yield from _taken(frame)
            return
        values = names_of(frame)
        yield from (values.get(name) for name in _arguments(frame.f_code))
        frame = frame.f_back


def _arguments(code: CodeType) -> tuple[str, ...]:
    return tuple(name for name in code.co_varnames[: code.co_argcount] if name not in {"initial", "out"})


def _taken(frame: FrameType) -> Iterator[Any]:
    node = expression(Frame(frame.f_code, frame.f_lasti))
    if node is None:
        return
    written = [ast.unparse(one) for one in _written(node)]  # bad by now
    names = ChainMap(names_of(frame), frame.f_globals)
    for one in _operands(node):
        if not any(_overlap(ast.unparse(one), into) for into in written):
            yield value_of(one, names)


def names_of(frame: FrameType) -> dict[str, Any]:
    """Return the names of a frame, which goes on to hold nothing for that.

    Before Python 3.13 what a function's frame gives is a copy of its names, that lives as long as it does: a batch in
    it, or a loss with its graph, would too. A script that holds it itself (``locals()``) keeps what it has.
    """
    found = frame.f_locals
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return found
    names = dict(found)
    if sys.getrefcount(found) <= _OURS:
        found.clear()
    return names


def _written(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.AugAssign):
        return [node.target]
    return outs(node) if isinstance(node, ast.Call) else []


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith((f"{other}.", f"{other}[")) or other.startswith((f"{one}.", f"{one}["))


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what goes into the arithmetic of an expression, its parts as well."""
    for child in _parts(node):
        yield child
        if not isinstance(child, (*_NOT_TAKEN, ast.Subscript, ast.Attribute)) and not _chooses(child):
            yield from _operands(child)


def _parts(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call):
        return [*([node.func.value] if isinstance(node.func, ast.Attribute) else []), *given(node)]
    if isinstance(node, ast.AugAssign | ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
        return [] if node.value is None else [node.value]
    return [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]


def _chooses(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in _CHOOSE


def value_of(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    """Return what plain text stands for, without a call of the script's code: names, attributes, elements of arrays."""
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        return _attribute(value_of(node.value, names), node.attr)
    return (
        _element(value_of(node.value, names), _index(node.slice, names)) if isinstance(node, ast.Subscript) else UNKNOWN
    )


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, ModuleType):
        return UNKNOWN  # np.inf, which is meant
    try:
        return object.__getattribute__(owner, "__dict__").get(name, UNKNOWN)
    except AttributeError:
        return UNKNOWN


def _element(owner: Any, index: Any) -> Any:
    if index is UNKNOWN or not (_is_array(owner) or type(owner) in (list, tuple, dict)):
        return UNKNOWN
    try:
        return owner[index]
    except (LookupError, TypeError, ValueError):
        return UNKNOWN


def _index(node: ast.AST | None, names: Mapping[str, Any]) -> Any:
    """Return the index that plain text stands for."""
    if node is None:
        return None
    if isinstance(node, ast.Tuple):
        parts = [_index(one, names) for one in node.elts]
        return UNKNOWN if any(one is UNKNOWN for one in parts) else tuple(parts)
    if isinstance(node, ast.Slice):
        ends = [_index(one, names) for one in (node.lower, node.upper, node.step)]
        return UNKNOWN if any(one is UNKNOWN for one in ends) else slice(*ends)
    try:
        return ast.literal_eval(node)
    except ValueError:
        found = value_of(node, names)
        return found if type(found) in (int, str, slice) or _is_array(found) else UNKNOWN


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _is_bad(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if isinstance(value, float):
        return not math.isfinite(value)
    if numpy is None or not (isinstance(value, numpy.generic) or type(value) is numpy.ndarray):
        return False
    return value.dtype.kind in "fc" and value.size <= _LARGEST and not bool(numpy.isfinite(value).all())

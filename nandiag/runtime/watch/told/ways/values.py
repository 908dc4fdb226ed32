"""What plain numbers a function had when it ended, and what a comparison of these comes to (worker)."""

from __future__ import annotations

import ast
import inspect
import math
import operator
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

Numbers: TypeAlias = Mapping[str, int | float | bool]

_LONGEST, _MOST = 64, 16  # of a text; of values that are packed into one
_NUMBERS = frozenset({int, float, bool})
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


def numbers_of(frame: FrameType) -> Numbers:
    """Return the plain numbers that names of a function stand for, its own and those that it reads of its module."""
    named: dict[str, Any] = {name: frame.f_globals.get(name) for name in frame.f_code.co_names} | frame.f_locals
    return {name: value for name, value in named.items() if type(value) in _NUMBERS}


class Given(NamedTuple):
    """What a function was given: which names stand for ``bad`` numbers, and which for short ``words``."""

    bad: frozenset[str]
    words: Mapping[str, str]


def given_to(frame: FrameType) -> Given:
    """Return what is known of the arguments of a function that begins; nothing of the script's is run for it."""
    code = frame.f_code
    more = [bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + sum(more)]
    held = frame.f_locals
    known = [(name, held.get(name)) for name in names]
    words = {name: one for name, one in known if type(one) is str and len(one) <= _LONGEST}
    return Given(frozenset(name for name, one in known if _is_bad(one)), words)


def _is_bad(value: Any) -> bool:
    if type(value) is tuple:
        return any(type(one) is float and not math.isfinite(one) for one in value[:_MOST])
    return type(value) is float and not math.isfinite(value)


def truth_of(test: ast.expr, numbers: Numbers) -> bool | None:
    """Return what a comparison of plain numbers came to, None where any is not known."""
    if not isinstance(test, ast.Compare):
        return None
    values = [_value(one, numbers) for one in (test.left, *test.comparators)]
    compared = [_COMPARE.get(type(one)) for one in test.ops]
    if None in values or None in compared:
        return None
    return all(how(*pair) for how, pair in zip(compared, pairwise(values), strict=True) if how is not None)


def _value(node: ast.expr, numbers: Numbers) -> int | float | bool | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) in _NUMBERS else None  # type: ignore[return-value]
    if isinstance(node, ast.Name):
        return numbers.get(node.id)
    if isinstance(node, ast.BinOp) and (how := _COMPUTE.get(type(node.op))) is not None:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        return None if left is None or right is None else how(left, right)
    return None

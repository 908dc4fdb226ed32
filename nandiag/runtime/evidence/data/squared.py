"""Squares of small integers that wrapped round in numpy, as it complained of the root of what is below 0 (worker).

No sum of squares is below 0: where the numbers are integers whose squares leave their dtype, that is why.
"""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Iterator
from types import FrameType
from typing import Any

from nandiag.runtime.frames import USER, Frame, kind_of
from nandiag.runtime.guard import disarm
from nandiag.runtime.numeric.fed import expression, names_of, value_of
from nandiag.runtime.watch.told.nothing import set_to

_OF_POSITIVE = ("sqrt", "log", "log2", "log10", "power")
_FRAMES, _LARGEST, _TWO = 8, 1 << 22, 2


def squared(said: str, frame: FrameType | None) -> dict[str, object]:
    """Return the name of what wrapped round as it was squared, its dtype, and the largest square. Never raises."""
    kind, _, op = said.partition(" encountered in ")
    if kind != "invalid value" or op.removeprefix("scalar ") not in _OF_POSITIVE:
        return {}
    try:
        return _wrapped(frame)
    except Exception as error:  # whatever the script has under its names
        disarm("squares", error)
        return {}


def _wrapped(frame: FrameType | None) -> dict[str, object]:
    for _ in range(_FRAMES):
        if frame is None or kind_of(frame.f_code.co_filename) == USER:
            break
        frame = frame.f_back
    place = None if frame is None else Frame(frame.f_code, frame.f_lasti)
    node = expression(place)
    if frame is None or place is None or node is None:
        return {}
    names = ChainMap(names_of(frame), frame.f_globals)
    for base, at in _bases(node, place):
        value = value_of(base, names)
        most = _leaves(value)
        if most is not None:
            return {"squared": [ast.unparse(base), str(value.dtype), most], "squared_at": at}
    return {}


def _bases(node: ast.AST, place: Frame) -> Iterator[tuple[ast.expr, list[object]]]:
    """Yield what is squared in an expression, and in what a name in it was set to, with the line and its text."""
    yield from ((base, []) for one in ast.walk(node) if (base := _base(one)) is not None)
    for name in [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]:
        for text, _, line in set_to(place, name):
            tree = ast.parse(text, mode="eval")
            yield from ((base, [line, name, text]) for one in ast.walk(tree) if (base := _base(one)) is not None)


def _base(node: ast.AST) -> ast.expr | None:
    """Return the x of ``x * x``, ``x ** 2`` and ``np.square(x)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return node.left if ast.dump(node.left) == ast.dump(node.right) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left if isinstance(node.right, ast.Constant) and node.right.value == _TWO else None
    square = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "square"
    return node.args[0] if isinstance(node, ast.Call) and square and node.args else None


def _leaves(value: Any) -> int | None:
    """Return the largest square where it is more than the dtype of an array, or a number of numpy's, holds."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not (isinstance(value, numpy.generic) or type(value) is numpy.ndarray):
        return None
    if value.dtype.kind not in "iu" or not 0 < value.size <= _LARGEST:
        return None
    most = max(int(value.max()), -int(value.min())) ** 2
    return most if most > int(numpy.iinfo(value.dtype).max) else None

"""What TorchScript runs of the script: in a replay as the Python it was written as, else by its lines (worker).

Its interpreter leaves no frames of Python's, and what it differentiates is one node to autograd.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch

from nandiag.runtime.frames import LIBRARY, USER, Frame, kind_of
from nandiag.runtime.frames.compiled import uncompiled
from nandiag.runtime.frames.text import nodes_of, tree_of

_as_written = ContextVar("as_written", default=False)
_run: Callable[..., Any] = torch._C.ScriptFunction.__call__

_Expression = ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare
_NOTHING: frozenset[str] = frozenset()
_OPERATORS: dict[type[ast.AST], frozenset[str]] = {
    ast.Add: frozenset({"add"}),
    ast.Sub: frozenset({"sub", "rsub"}),
    ast.Mult: frozenset({"mul"}),
    ast.Div: frozenset({"div", "reciprocal"}),
    ast.Pow: frozenset({"pow"}),
    ast.MatMult: frozenset({"matmul", "mm", "bmm", "mv", "dot"}),
    ast.Mod: frozenset({"remainder"}),
    ast.FloorDiv: frozenset({"floor_divide"}),
    ast.USub: frozenset({"neg"}),
}


@contextmanager
def as_written() -> Iterator[None]:
    """Have what was compiled run as the Python that it was written as: op by op, with autograd's own nodes."""
    before = _as_written.set(True)
    try:
        with uncompiled():
            yield
    finally:
        _as_written.reset(before)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what ``torch.jit.script`` or ``trace`` made of a function.

    A trace is never run as written: it holds one way through the function, and the Python may take another one.
    """
    written = getattr(function, "_torchdynamo_inline", None) if _as_written.get() else None
    if isinstance(written, FunctionType) and getattr(function, "__name__", None) == "ScriptFunction":
        return written(*args, **kwargs)
    return _run(function, *args, **kwargs)


def scripted(op: str) -> tuple[Frame, ...] | None:
    """Return the lines of TorchScript that now run ``op``, innermost first; ``None`` where it does not run.

    ``op`` is its name as torch gives it: ``aten.pow.Tensor_Scalar``. The interpreter knows files and lines alone: of a
    line the expression is taken that can be this op, or the outermost where none can, or more than one.
    """
    trace = torch._C._profiler.gather_traceback(python=False, script=True, cpp=False)
    places = torch._C._profiler.symbolize_tracebacks([trace])[0]
    name, found = op.split(".")[1] if "." in op else op, []
    for place in places:
        frame = _frame(place["filename"], place["line"], name)
        if frame is not None:
            found.append(frame)
            name = frame.code.co_name
    return tuple(found) if places else None


def begins_node(op: str) -> bool:
    """Whether ``op`` is the first behind a node of TorchScript's own, by which it differentiates many ops at once.

    It detaches what goes into these.
    """
    return op == "aten.detach.default" and scripted(op) is not None


@lru_cache(maxsize=512)
def _frame(file: str, line: int, name: str) -> Frame | None:
    tree = tree_of(file) if kind_of(file) in {USER, LIBRARY} else None
    expression = None if tree is None else _expression(tree, line, name)
    if tree is None or expression is None:
        return None
    holding = [one for one in nodes_of(tree) if isinstance(one, ast.FunctionDef | ast.Lambda) and _holds(one, line)]
    code = _standing_for(expression, file).replace(
        co_name=getattr(holding[-1], "name", "<lambda>") if holding else name
    )
    return Frame(code, _first(code))


def _expression(tree: ast.AST, line: int, name: str) -> _Expression | None:
    there = [one for one in nodes_of(tree) if isinstance(one, _Expression) and _holds(one, line)]
    begun = [one for one in there if one.lineno == line] or there
    fitting = [one for one in begun if name.strip("_") in _names(one)]
    return fitting[0] if len(fitting) == 1 else next(iter(begun), None)


def _holds(node: ast.FunctionDef | ast.Lambda | _Expression, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _names(node: _Expression) -> frozenset[str]:
    """Return what ops an expression can be."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return frozenset({called.strip("_")})
    return _NOTHING if isinstance(node, ast.Compare) else _OPERATORS.get(type(node.op), _NOTHING)


def _standing_for(node: _Expression, file: str) -> CodeType:
    # No code of Python's runs there: a name at the place of the expression has its line and its columns.
    name = ast.copy_location(ast.Name("_", ast.Load()), node)
    return compile(ast.Expression(name), file, "eval")


def _first(code: CodeType) -> int:
    positions: Iterator[tuple[int | None, ...]] = getattr(code, "co_positions", lambda: iter(()))()
    return next((2 * place for place, position in enumerate(positions) if position[0] and position[3]), 0)

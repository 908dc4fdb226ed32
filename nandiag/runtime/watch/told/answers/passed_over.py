"""Whether the script goes on with its loop on a bad answer, by its text: then the step is left out (worker)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from nandiag.runtime.evidence.around.place import Function, end_of
from nandiag.runtime.frames import USER
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.guard import guarded
from nandiag.runtime.watch.told.answers.asked import Question

_ENDS = frozenset({"exit", "_exit", "quit", "abort"})
_STEPS = frozenset({"backward", "step"})
_LEAVES = (ast.Break, ast.Raise, ast.Continue, ast.Return)
_ASKS = frozenset({"isfinite", "isnan", "isinf"})
# To say a number, or to write it down, makes no use of it as a loss.
_SAYS = frozenset({"print", "append", "add", "log", "info", "debug", "warning", "error", "write", "add_scalar", "item"})


@guarded("questions")
def is_passed_over(question: Question) -> bool:
    """Whether the condition that the question was asked for leads on to the next turn of a loop, or round the update.

    It is that of the line itself, of one behind it that has the answer by name, or of the call that asks.
    """
    answers = (_answer(frame.file, frame.line) for frame in question.spot(0).frames if frame.kind == USER)
    return next((one for one in answers if one is not None), False)


@guarded("questions")
def is_decided(question: Question) -> bool:
    """Whether a condition that the question was asked for leads out of a loop, a function or the script, or on.

    Or to the use of what was asked of: ``if isfinite(loss): self.update(loss)``.
    """
    frames = (frame for frame in question.spot(0).frames if frame.kind == USER)
    return any(_decides(frame.file, frame.line) for frame in frames)


@functools.lru_cache(maxsize=256)
def _decides(file: str, line: int) -> bool:
    condition = _condition(file, line)
    if condition is None:
        return False
    inner = _inner(condition)
    leads = any(isinstance(one, _LEAVES) for one in inner) or bool(_called(inner) & (_ENDS | _STEPS))
    return leads or _hands_on(inner, [condition.test, *_values(file, line)])


def _values(file: str, line: int) -> list[ast.expr]:
    """Return what is given names in the line."""
    tree = tree_of(file)
    made = [] if tree is None else [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
    return [one.value for one in made if one.lineno <= line <= end_of(one)[0]]


def _hands_on(inner: list[ast.AST], asked: list[ast.expr]) -> bool:
    """Whether what is asked there to be finite is given to a call under the condition that does more than say it."""
    nodes = [node for one in asked for node in ast.walk(one)]
    if not _called(nodes) & _ASKS:
        return False
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    calls = [one for one in inner if isinstance(one, ast.Call) and _name_of(one.func) not in _SAYS]
    return any(isinstance(word, ast.Name) and word.id in names for one in calls for word in one.args)


@functools.lru_cache(maxsize=256)
def _answer(file: str, line: int) -> bool | None:
    condition = _condition(file, line)
    return None if condition is None else _goes_on(condition)


def _condition(file: str, line: int) -> ast.If | None:
    """Return the ``if`` whose condition stands in the line, or has by name what that line makes."""
    tree = tree_of(file)
    scope = None if tree is None else _innermost(tree, line)
    many = [] if scope is None else [one for one in ast.walk(scope) if isinstance(one, ast.If)]
    there = next((one for one in many if one.test.lineno <= line <= end_of(one.test)[0]), None)
    if there is not None or scope is None:
        return there
    names = set(_made(scope, line))
    behind = (one for one in sorted(many, key=lambda one: one.lineno) if one.lineno > line)
    return next((one for one in behind if names & {node.id for node in _names(one.test)}), None)


def _innermost(tree: ast.Module, line: int) -> ast.AST:
    held = [one for one in ast.walk(tree) if isinstance(one, Function) and one.lineno <= line <= end_of(one)[0]]
    return max(held, key=lambda one: one.lineno, default=tree)


def _made(scope: ast.AST, line: int) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and node.lineno <= line <= end_of(node)[0]:
            yield from (name.id for target in node.targets for name in _names(target))


def _names(node: ast.AST) -> list[ast.Name]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)]


def _goes_on(condition: ast.If) -> bool | None:
    """Whether a turn of the loop ends under the condition, or an update stands there, and nothing leaves the loop.

    None where that is for the caller to decide, which gets an answer back.
    """
    inner = _inner(condition)
    called = _called(inner)
    if called & _ENDS or any(isinstance(one, ast.Break | ast.Raise) for one in inner):
        return False
    return True if called & _STEPS or any(isinstance(one, ast.Continue) for one in inner) else None


def _inner(condition: ast.If) -> list[ast.AST]:
    return [node for part in (*condition.body, *condition.orelse) for node in ast.walk(part)]


def _called(nodes: list[ast.AST]) -> set[str]:
    return {_name_of(one.func) for one in nodes if isinstance(one, ast.Call)}


def _name_of(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]

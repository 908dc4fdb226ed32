"""Whether the script goes on with its loop on a bad answer, by its text: then the step is left out (worker)."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from nandiag.runtime.evidence.around.place import Function, end_of
from nandiag.runtime.frames import USER, Frame
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.guard import guarded
from nandiag.runtime.watch.told.answers.asked import Question

Functions: TypeAlias = Mapping[str, Sequence[ast.stmt]]

_ENDS = frozenset({"exit", "_exit", "quit", "abort"})
_STEPS = frozenset({"backward", "step"})
_LEAVES = (ast.Break, ast.Raise, ast.Continue, ast.Return)
_CLASSES = ""  # no function has that name
_DEEP = 3  # calls, from that under a condition to the one that trains


@guarded("questions")
def is_passed_over(question: Question) -> bool:
    """Whether the condition that the question was asked for leads on to the next turn of a loop, or round the update.

    It is that of the line itself, of one behind it that has the answer by name, or of the call that asks.
    """
    return leads_on(question.spot(0).frames)


def leads_on(frames: Iterable[Frame]) -> bool:
    """Whether the innermost condition that what ``frames`` ask is asked for leads on, and does not end the loop."""
    answers = (_answer(frame.file, frame.line) for frame in frames if frame.kind == USER)
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
    return leads or _hands_on(inner, [condition.test, *_values(file, line)], _functions(file))


def _values(file: str, line: int) -> list[ast.expr]:
    """Return what is given names in the line."""
    tree = tree_of(file)
    made = [] if tree is None else [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
    return [one.value for one in made if one.lineno <= line <= end_of(one)[0]]


def _hands_on(inner: list[ast.AST], asked: list[ast.expr], functions: Functions) -> bool:
    """Whether what is asked of there is given to a call under the condition that trains by it, as its text has it."""
    names = {node.id for one in asked for node in _names(one)}
    calls = [one for one in inner if isinstance(one, ast.Call) and _trains(one, functions, _DEEP)]
    words = [word for one in calls for word in (*one.args, *(keyword.value for keyword in one.keywords))]
    return any(node.id in names for word in words for node in _names(word))


def _trains(call: ast.Call, functions: Functions, deep: int) -> bool:
    """Whether all that it may call, by its name and that of its class, calls backward or an update, however deep."""
    name, own = _name_of(call.func), ast.unparse(call.func).startswith("self.")
    known = [one for one in functions.get(name, ()) if not own or one.lineno in _of_class(functions, call.lineno)]
    return bool(deep and known) and all(_goes_back(one, functions, deep - 1) for one in known)


def _goes_back(function: ast.stmt, functions: Functions, deep: int) -> bool:
    inner = [*ast.walk(function)]
    calls = [one for one in inner if isinstance(one, ast.Call)]
    return bool(_called(inner) & _STEPS) or any(_trains(one, functions, deep) for one in calls)


def _of_class(functions: Functions, line: int) -> range:
    """Return the lines of the innermost class around a line, else all."""
    around = [one for one in functions[_CLASSES] if one.lineno <= line <= end_of(one)[0]]
    innermost = max(around, key=lambda one: one.lineno, default=None)
    return range(sys.maxsize) if innermost is None else range(innermost.lineno, end_of(innermost)[0] + 1)


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> Functions:
    """Return the functions and methods of a file by their names, and its classes."""
    tree, found = tree_of(file), dict[str, list[ast.stmt]]({_CLASSES: []})
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found[_CLASSES].append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


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

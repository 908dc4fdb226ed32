"""Whether the script goes on with its loop on a bad answer, by its text: then the step is left out (worker)."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from types import UnionType
from typing import Any

from nandiag.runtime.evidence.around.place import Function, end_of, root
from nandiag.runtime.frames import USER, Frame
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.guard import guarded
from nandiag.runtime.watch.told.answers.asked import Question
from nandiag.runtime.watch.told.answers.by_text.conditions import Condition, condition_at, conditions, names_in
from nandiag.runtime.watch.told.answers.by_text.trains import any_trains, name_of, trains

_ENDS = frozenset({"exit", "_exit", "quit", "abort"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ADDS = frozenset({"append", "add", "extend"})


@guarded("questions")
def is_passed_over(question: Question) -> bool:
    """Whether the condition that the question was asked for leads on to the next turn of a loop, or round the update.

    It is that of the line itself, of one behind it that has the answer by name, or of the call that asks.
    """
    return leads_on(question.spot(0).frames)


@guarded("questions")
def is_left_on(question: Question) -> bool:
    """Whether that condition surely ends the loop, or the script."""
    return _leads(question.spot(0).frames) is False


def leads_on(frames: Iterable[Frame]) -> bool:
    """Whether the innermost condition that what ``frames`` ask is asked for leads on, and does not end the loop."""
    return _leads(frames) is True


def _leads(frames: Iterable[Frame]) -> bool | None:
    answers = (_answer(frame.file, frame.line) for frame in frames if frame.kind == USER)
    return next((one for one in answers if one is not None), None)


@guarded("questions")
def is_decided(question: Question) -> bool:
    """Whether a condition that the question was asked for leads out of a loop, a function or the script, or on.

    Or to the use of what was asked of: ``if isfinite(loss): self.update(loss)``.
    """
    frames = (frame for frame in question.spot(0).frames if frame.kind == USER)
    return any(_decides(frame.file, frame.line) for frame in frames)


@guarded("questions")
def may_train(question: Question) -> bool:
    """Whether what was asked of is handed to a call under the condition of which it is not known what it does."""
    frames = (frame for frame in question.spot(0).frames if frame.kind == USER)
    return any(_hands_on(frame.file, frame.line, surely=False) for frame in frames)


@functools.lru_cache(maxsize=256)
def _decides(file: str, line: int) -> bool:
    condition = condition_at(file, line)
    if condition is None:
        return False
    inner = condition.inner
    leads = any(isinstance(one, ast.Break | ast.Raise) for one in inner) or bool(_called(inner) & _ENDS)
    leads = leads or _turns_to_next(condition, file, ast.Continue | ast.Return)
    return leads or _steps(inner, file) or _hands_on(file, line, surely=True)


def _steps(inner: list[ast.AST], file: str) -> bool:
    """Whether backward or an update is called there itself."""
    return any_trains(inner, file, 0) is True


def _turns_to_next(condition: Condition, file: str, leaves: type[ast.stmt] | UnionType) -> bool:
    """Whether it leaves the turn there, and not behind all that trains in it, as where a metric is read."""
    inner = condition.inner
    kinds = [type(one) for one in inner if isinstance(one, leaves)]
    loop = _loop(file, condition.lineno, Function if kinds and ast.Continue not in kinds else _LOOPS) if kinds else None
    if loop is None:
        return bool(kinds)
    behind = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and one.lineno > condition.end]
    before = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and one.lineno < condition.lineno]
    told = any_trains(behind, file), any_trains(before, file)
    return told[0] is True or (told[1] is not True and not (told == (False, False) and _rests(loop, file)))


def _rests(loop: ast.AST, file: str) -> bool:
    """Whether surely nothing trains by what a loop of the script's outermost lines comes to: it looks into something.

    What a function's loop comes to is for its caller, and so is what is yielded.
    """
    tree = tree_of(file)
    outermost = next((one for one in (tree.body if tree else ()) if any(node is loop for node in ast.walk(one))), None)
    if outermost is None or isinstance(outermost, Function | ast.ClassDef):
        return False
    return any_trains(ast.walk(outermost), file) is False


def _loop(file: str, line: int, kind: Any) -> ast.AST | None:
    """Return the innermost loop, or function, around a line."""
    tree = tree_of(file)
    nodes = () if tree is None else ast.walk(tree)
    held = [one for one in nodes if isinstance(one, kind) and one.lineno <= line <= end_of(one)[0]]
    return max(held, key=lambda one: one.lineno, default=None)


def _values(file: str, line: int) -> list[ast.expr]:
    """Return what is given names in the line."""
    tree = tree_of(file)
    made = [] if tree is None else [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
    return [one.value for one in made if one.lineno <= line <= end_of(one)[0]]


@functools.lru_cache(maxsize=256)
def _hands_on(file: str, line: int, *, surely: bool) -> bool:
    """Whether what is asked there is given to a call under the condition that trains by it, ``surely`` or perhaps."""
    condition = condition_at(file, line)
    if condition is None:
        return False
    names = {node.id for one in (condition.test, *_values(file, line)) for node in names_in(one)}
    wanted = True if surely else None
    calls = [one for one in condition.inner if isinstance(one, ast.Call) and trains(one, file) is wanted]
    words = [word for one in calls for word in (*one.args, *(keyword.value for keyword in one.keywords))]
    return any(node.id in names for word in words for node in names_in(word))


@functools.lru_cache(maxsize=256)
def _answer(file: str, line: int) -> bool | None:
    condition = condition_at(file, line)
    return None if condition is None else _goes_on(condition, file)


def _goes_on(condition: Condition, file: str) -> bool | None:
    """Whether a turn of the loop ends under the condition, or an update stands there, and nothing leaves the loop.

    None where that is for the caller to decide, which gets an answer back.
    """
    inner = condition.inner
    if _called(inner) & _ENDS or any(isinstance(one, ast.Break | ast.Raise) for one in inner):
        return False
    if any_trains(inner, file) is True or _turns_to_next(condition, file, ast.Continue):
        return True
    return _kept_for_later(condition, file)


def _kept_for_later(condition: Condition, file: str) -> bool | None:
    """Whether what is put into a list there is what a condition behind it goes on by: ``good.append(loss)``."""
    calls = [one.func for one in condition.inner if isinstance(one, ast.Call)]
    into = {root(one) for one in calls if isinstance(one, ast.Attribute) and one.attr in _ADDS}
    scope = _loop(file, condition.lineno, _LOOPS)
    many = [] if scope is None or not into else conditions(scope)
    behind = (one for one in sorted(many, key=lambda one: one.lineno) if one.lineno > condition.end)
    later = next((one for one in behind if into & one.names), None)
    return None if later is None else _goes_on(later, file)


def _called(nodes: list[ast.AST]) -> set[str]:
    return {name_of(one.func) for one in nodes if isinstance(one, ast.Call)}

"""Whether a call makes an update, by the text of what it calls, wherever that stands: or it is not known (worker).

What a name stands for is read off the module that its file was loaded as, or off what the text gives it; nothing of the
script's is run for that.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from inspect import getattr_static
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from nandiag.runtime.evidence.around.place import Function, end_of, root
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.frames.text import tree_of

Text: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
Functions: TypeAlias = Mapping[str, Sequence[Text]]

_CLASSES = ""  # no function has that name
_LAMBDA = "<lambda>"  # nor this
_LAYERS = 8  # around a function: decorators, partial calls, objects that are called
_DEEP = 3  # calls, from that under a condition to the one that trains
_UNKNOWN = object()
_MOST = 4096  # functions, or lines, of which it is known what they come to
_IDLE = "sched", "bar", "prof", "meter"
_PLAIN = frozenset({"builtins", "torch", "numpy"})  # whose functions without a text do not
_EVERYDAY = (Tensor, list, dict, str, set)


def trains(call: ast.Call, file: str, deep: int = _DEEP) -> bool | None:
    """Whether ``call`` calls backward or an update, however deep; None where what it calls is not known."""
    name = name_of(call.func)
    if name == "backward":
        return True
    steps = _steps(call, file) if name == "step" else None
    if steps is not None or not deep:
        return steps
    ways = picked(call.func)
    if ways:
        return any_trains([_call_of(one, call) for one in ways], file, deep)
    value = _called(call.func, file, call.lineno)
    return _by_name(call, file, deep) if value is _UNKNOWN else _by_value(value, deep)


def any_trains(nodes: Iterable[ast.AST], file: str, deep: int = _DEEP) -> bool | None:
    """Whether one of the calls among ``nodes`` does; None where none is known to, and of some it is not known."""
    found: bool | None = False
    for one in nodes:
        told = trains(one, file, deep) if isinstance(one, ast.Call) else False
        if told:
            return True
        found = found if told is False else None
    return found


def name_of(function: ast.expr) -> str:
    """Return the last name of what is called; nothing of what has none."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def picked(node: ast.AST) -> Sequence[ast.expr]:
    """Return what ``node`` picks one of, as it is called: ``(step if good else skip)(loss)``; else nothing."""
    if isinstance(node, ast.IfExp):
        return node.body, node.orelse
    if isinstance(node, ast.BoolOp):
        return node.values
    held = node.value if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant) else None
    if isinstance(held, ast.Dict):
        return held.values
    return held.elts if isinstance(held, ast.Tuple | ast.List) else ()


def used_as(pick: ast.expr, scope: ast.AST) -> list[ast.Call]:
    """Return the calls in ``scope`` of what is picked, one for each that it may be: there, or behind it by name."""
    given = (one for one in ast.walk(scope) if isinstance(one, ast.Assign) and one.value is pick)
    names = {one.id for assign in given for one in assign.targets if isinstance(one, ast.Name)}
    calls = [one for one in ast.walk(scope) if isinstance(one, ast.Call)]
    own = [one for one in calls if one.func is pick or (one.lineno > pick.lineno and name_of(one.func) in names)]
    return [_call_of(way, call) for call in own for way in picked(pick)]


def _call_of(function: ast.expr, call: ast.Call) -> ast.Call:
    return ast.copy_location(ast.Call(function, call.args, call.keywords), call)


def _steps(call: ast.Call, file: str) -> bool | None:
    """Whether ``step`` is that of an optimizer or a scaler; None where the text of the method has to tell."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    kind = None if owner is None else _type_of(owner, file, call.lineno)
    if kind is not None:
        return True if issubclass(kind, Optimizer) or "Scaler" in kind.__name__ else None
    words = [ast.unparse(one).lower() for one in (*call.args, *(one.value for one in call.keywords))]
    text = "" if owner is None else ast.unparse(owner).lower()
    if "opt" in text or "scaler" in text or any("opt" in one for one in words):
        return True
    return True if not words and not any(one in text for one in _IDLE) else None


def _by_value(value: Any, deep: int) -> bool | None:
    """Whether the function ``value`` does, by its text; what has none does not, nor what is torch's own."""
    function, owner = _function_of(value)
    if function is None:
        plain = issubclass(type(value), nn.Module) or type(value).__module__.partition(".")[0] in _PLAIN
        return False if plain else None
    file = function.__code__.co_filename
    if kind_of(file) != USER:
        return False if (function.__module__ or "").partition(".")[0] == "torch" else None
    text = _text_of(function, file)
    told = None if text is None else _goes_back(text, file, deep - 1)
    given = [] if told is not None or text is None or deep <= 1 else _given_to(text, function, owner)
    return True if any(_by_value(one, deep - 1) for one in given) else told


def _function_of(value: Any) -> tuple[FunctionType | None, Any]:
    """Return the script's own function that a call of ``value`` comes to, and the object it is called for, if any."""
    owner = None
    for _ in range(_LAYERS):
        kind = type(value)  # by which nothing of the script's is run, as by ``isinstance``
        if issubclass(kind, MethodType | staticmethod | classmethod):
            owner, value = getattr(value, "__self__", owner), value.__func__
        elif issubclass(kind, functools.partial):
            value = value.func
        elif (inner := _held(value).get("__wrapped__")) is not None:
            value = inner
        elif issubclass(kind, FunctionType | type | nn.Module):
            break
        else:
            owner, value = value, getattr_static(kind, "__call__", None)
    return (value, owner) if type(value) is FunctionType else (None, None)


def _text_of(function: FunctionType, file: str) -> Text | None:
    """Return the text of a ``function``; None where that is one of several lambdas in a line."""
    name, line = function.__code__.co_name, function.__code__.co_firstlineno
    found = [one for one in functions(file).get(name, ()) if _begins(one) <= line <= end_of(one)[0]]
    if name == _LAMBDA:
        found = [one for one in found if one.lineno == line]
        return found[0] if len(found) == 1 else None
    return found[-1] if found else None


def _given_to(text: Text, function: FunctionType, owner: Any) -> list[Any]:
    """Return what is called there that the function was made with, as decorators do, or that its object holds."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    calls = [one.func for one in ast.walk(text) if isinstance(one, ast.Call)]
    names = {one.id for one in calls if isinstance(one, ast.Name)} & cells.keys()
    own = function.__code__.co_varnames[:1]
    of_own = [one for one in calls if isinstance(one, ast.Attribute) and getattr(one.value, "id", None) in own]
    held = {one.attr for one in of_own} & _held(owner).keys()
    filled = [cells[name] for name in names if cells[name] != CellType()]  # an empty one is asked for no value
    return [*(one.cell_contents for one in filled), *(_held(owner)[name] for name in held)]


def _begins(function: Text) -> int:
    marks: list[ast.expr] = getattr(function, "decorator_list", [])
    return min([function.lineno, *(one.lineno for one in marks)])


def _by_name(call: ast.Call, file: str, deep: int) -> bool | None:
    """Whether all that it may call in this file, by its name and that of its class, do."""
    name, own = name_of(call.func), root(call.func) == "self"
    known = functions(file)
    fit = [one for one in known.get(name, ()) if not own or one.lineno in _of_class(known, call.lineno)]
    if not fit and name != "update" and any(hasattr(kind, name) for kind in _EVERYDAY):
        return False
    told = {_goes_back(one, file, deep - 1) for one in fit}
    if len(told) == 1 and (told == {True} or own or isinstance(call.func, ast.Name)):
        return told.pop()
    return None


@functools.lru_cache(maxsize=_MOST)
def _goes_back(function: Text, file: str, deep: int) -> bool | None:
    return any_trains(ast.walk(function), file, deep)


def _of_class(known: Functions, line: int) -> range:
    """Return the lines of the innermost class around a line, else all."""
    innermost = _class_at(known, line)
    return range(sys.maxsize) if innermost is None else range(innermost.lineno, end_of(innermost)[0] + 1)


def _class_at(known: Functions, line: int) -> Text | None:
    around = [one for one in known[_CLASSES] if one.lineno <= line <= end_of(one)[0]]
    return max(around, key=lambda one: one.lineno, default=None)


@functools.lru_cache(maxsize=64)
def functions(file: str) -> Functions:
    """Return the functions and methods of a file by their names, and its classes."""
    tree, found = tree_of(file), dict[str, list[Text]]({_CLASSES: []})
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found[_CLASSES].append(node)
        elif isinstance(node, Function):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault(_LAMBDA, []).append(node)
    return found


# ---------------------------------------------------------------------- what names stand for


def _called(function: ast.expr, file: str, line: int) -> Any:
    """Return what is called, as far as it is known."""
    if isinstance(function, ast.Attribute):
        found = _value(function, file, line)
        kind = _type_of(function.value, file, line) if found is _UNKNOWN else None
        return found if kind is None else getattr_static(kind, function.attr, _UNKNOWN)
    return _value(function, file, line)


def _value(node: ast.expr, file: str, line: int) -> Any:
    """Return what a name of the file, an attribute or an item of one stands for now."""
    if isinstance(node, ast.Name):
        return _UNKNOWN if _is_local(node.id, file, line) else _global(node.id, file)
    if isinstance(node, ast.Attribute):
        return _attribute(_value(node.value, file, line), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        held = _value(node.value, file, line)
        return held.get(node.slice.value, _UNKNOWN) if type(held) is dict else _UNKNOWN
    return _UNKNOWN


def _attribute(owner: Any, name: str) -> Any:
    if owner is _UNKNOWN:
        return owner
    own = getattr(owner, "__dict__", {}) if issubclass(type(owner), ModuleType | type) else _held(owner)
    return own[name] if name in own else getattr_static(type(owner), name, _UNKNOWN)


def _held(owner: Any) -> Mapping[str, Any]:
    try:
        return object.__getattribute__(owner, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


def _global(name: str, file: str) -> Any:
    return (_module(file) or {}).get(name, getattr(builtins, name, _UNKNOWN))


def _module(file: str) -> dict[str, Any] | None:
    """Return what the module has by names that was loaded from ``file``."""
    for one in (sys.modules.get("__main__"), *tuple(sys.modules.values())):
        if isinstance(one, ModuleType) and _file_of(one.__dict__) == file:
            return one.__dict__
    return None


def _file_of(names: Mapping[str, Any]) -> str | None:
    """Return the file that a module was loaded from: Python takes the script's own off it when the script ends."""
    found = names.get("__file__")
    loader = names.get("__loader__") if found is None else None
    return loader.path if isinstance(loader, SourceFileLoader) else found


def _is_local(name: str, file: str, line: int) -> bool:
    scope = _scope(file, line)
    return isinstance(scope, Function) and name in _own_names(scope)


@functools.lru_cache(maxsize=_MOST)
def _own_names(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function is given, or gives."""
    nodes = [*ast.walk(scope)]
    elsewhere = {name for one in nodes if isinstance(one, ast.Global) for name in one.names}
    set_here = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    given = {one.arg for one in nodes if isinstance(one, ast.arg)}
    inner = {one.name for one in nodes if isinstance(one, Function) and one is not scope}
    return (set_here | given | inner) - elsewhere


@functools.lru_cache(maxsize=_MOST)
def _scope(file: str, line: int) -> ast.AST | None:
    many = (one for name, fit in functions(file).items() if name not in (_CLASSES, _LAMBDA) for one in fit)
    held = [one for one in many if one.lineno <= line <= end_of(one)[0]]
    return max(held, key=lambda one: one.lineno, default=tree_of(file))


def _type_of(node: ast.expr, file: str, line: int) -> type | None:
    """Return the class of what an expression stands for, by its value, or by the call that makes it."""
    if isinstance(node, ast.Call):
        made = _value(node.func, file, line)
        return made if isinstance(made, type) else None
    if isinstance(node, ast.Name) and node.id == "self":
        around = _class_at(functions(file), line)
        own = None if around is None else _global(getattr(around, "name", ""), file)
        return own if isinstance(own, type) else None
    value = _value(node, file, line)
    if value is not _UNKNOWN:
        return type(value)
    return _made_as(node, file, line)


def _made_as(node: ast.expr, file: str, line: int) -> type | None:
    """Return the class that all assignments to it make it of: in its function, or for ``self.x`` in its class."""
    text = ast.unparse(node)
    within = _class_at(functions(file), line) if text.startswith("self.") else _scope(file, line)
    calls = () if within is None else _given(within).get(text, ())
    kinds = {_type_of(one, file, one.lineno) if isinstance(one, ast.Call) else None for one in calls}
    return kinds.pop() if len(kinds) == 1 else None


@functools.lru_cache(maxsize=_MOST)
def _given(within: ast.AST) -> Mapping[str, Sequence[ast.expr]]:
    """Return what is assigned there, by the text of what it is assigned to."""
    found: dict[str, list[ast.expr]] = {}
    for one in ast.walk(within):
        for target in one.targets if isinstance(one, ast.Assign) else ():
            for name, value in _each(target, one.value):  # type: ignore[attr-defined]
                found.setdefault(ast.unparse(name), []).append(value)
    return found


def _each(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return what is given what, one by one: ``a, b = A(), B()``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]

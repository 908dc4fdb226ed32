"""What a condition reads, and what a statement gives a value: each by a name that holds in all of the script (worker).

Of an object it matters what is asked: ``name`` is what it is, or its state; ``name[]`` what it holds, ``name+`` how
much of that, where that may only grow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import copy
from types import CodeType

from nandiag.runtime.watch.told.ways.text import WITHIN, Text, called

HELD, GROWN, TAKEN = "[]", "+", "-"
ANY = "."  # some attribute, of a name that is not known
_GROW = frozenset({"append", "add", "extend", "put", "appendleft", "insert", "push", "put_nowait"})
SELF = frozenset({"self", "cls"})
_BY_NAME = frozenset({"setattr", "__setattr__"})
# What asks for a key as a subscript does, and what takes out what others have put in.
_GETS = frozenset({"get", "pop", "setdefault"})
_TAKES = frozenset({"pop", "popleft", "get", "get_nowait", "popitem"})
_DEEPEST = 2


class Names:
    """The names in the text of ``code``: those of a function's own are no others' of that name."""

    def __init__(self, text: Text, code: CodeType) -> None:
        self._text, self._file = text, code.co_filename
        self._own = {*code.co_varnames, *_repeated(code)} - {*code.co_cellvars}
        self._function = f"{id(code):x}"
        self._read = dict[tuple[ast.AST, bool], set[str]]()

    def name(self, node: ast.AST) -> str | None:
        """Return the name of a variable, an attribute or a key; None of what else there is."""
        if isinstance(node, ast.Name):
            return self.variable(node.id)
        if isinstance(node, ast.Attribute):
            return f".{node.attr}"  # what it is of may have another name elsewhere
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is str:
            return f"[{node.slice.value}]"
        return None

    def variable(self, name: str) -> str:
        """Return the name of a variable."""
        return f"{name}@{self._function if name in self._own else self._file}"

    def is_own(self, name: str) -> bool:
        """Whether a name is one of the function's own, which nothing else has."""
        return name.partition("@")[2].startswith(self._function)

    def targets(self, node: ast.AST) -> set[str]:
        """Return what a statement, or the head of a loop, gives a value."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
        return {name for one in targets for name in self._each(one)}

    def given(self, loop: ast.For | ast.AsyncFor) -> set[str]:
        """Return what the head of a loop binds to what it goes through: not the count of its turns."""
        target, counts = loop.target, isinstance(loop.iter, ast.Call) and called(loop.iter) == "enumerate"
        return set(self._each(target.elts[-1] if counts and isinstance(target, ast.Tuple) else target))

    def _each(self, target: ast.AST) -> Iterator[str]:
        if isinstance(target, ast.Tuple | ast.List):
            for one in target.elts:
                yield from self._each(one)
        elif isinstance(target, ast.Starred):
            yield from self._each(target.value)
        elif (name := self.name(target)) is not None:
            yield name
        elif isinstance(target, ast.Subscript) and (name := self.name(target.value)) is not None:
            yield name + HELD

    def receiver(self, call: ast.Call) -> str | None:
        """Return the name of the object whose method is called, unless that is a module or the method's own object."""
        node = call.func.value if isinstance(call.func, ast.Attribute) else None
        if node is None or (isinstance(node, ast.Name) and node.id in (SELF | self._text.imported)):
            return None
        name = self.name(node)
        return f"{name}{GROWN}" if name is not None and called(call) in _GROW else name

    def set_by_name(self, call: ast.Call, words: Mapping[str, str]) -> set[str]:
        """Return the attribute that ``setattr`` gives a value; its name may be one of the ``words``."""
        if called(call) not in _BY_NAME or len(call.args) < 2:
            return set()
        node = call.args[-2]
        text = node.value if isinstance(node, ast.Constant) else words.get(self.name(node) or "")
        return {f".{text}" if isinstance(text, str) else ANY}

    def reads(self, test: ast.AST, *, turns: bool = False) -> set[str]:
        """Return what is read there; ``turns``: by the condition of a loop, which what grows does not end."""
        found = self._read.get((test, turns))
        if found is None:
            found = {*_Reads(self, turns=turns).visit(test, bare=True), *self._within(test)}
            self._read[test, turns] = found
        return found

    def _within(self, node: ast.AST, depth: int = 0) -> Iterator[str]:
        """Yield what the script's functions and properties read that are asked there."""
        asked = {name for one in ast.walk(node) if (name := _asked(one))} if depth < _DEEPEST else set[str]()
        calls = {called(one) for one in ast.walk(node) if isinstance(one, ast.Call)} if asked else set[str]()
        for name in asked:
            for function in self._text.functions.get(name, ()):
                if name in calls or function.decorator_list:  # type: ignore[attr-defined]
                    yield from self._given_back(function)
                for one in ast.walk(function):
                    if isinstance(one, ast.Attribute):
                        yield f".{one.attr}"
                yield from self._within(function, depth + 1)

    def _given_back(self, function: ast.AST) -> Iterator[str]:
        """Yield what a function reads that others may have written: for what it gives back, or for its conditions."""
        there = copy(self)
        there._own = _bound(function)
        there._function = f"{id(function):x}"
        for one in ast.walk(function):
            part = one.value if isinstance(one, ast.Return | ast.Assign) else getattr(one, "test", None)
            names = () if part is None else _Reads(there, turns=False).visit(part, bare=True)
            yield from (name for name in names if not there.is_own(name))


def may_be_of(name: str) -> set[str]:
    """Return what something that is taken out of an object may be made of; nothing for another ``name``."""
    held = name.removesuffix(TAKEN)
    return set() if held == name else {held + HELD, held + GROWN}


def _bound(function: ast.AST) -> set[str]:
    """Return the names of a function that are its own."""
    nodes = list(ast.walk(function))
    given = {one.arg for one in nodes if isinstance(one, ast.arg)}
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    others = {name for one in nodes if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names}
    return (given | stored) - others


def _repeated(code: CodeType) -> Iterator[str]:
    """Yield what only the comprehensions of a function have, which are codes of their own before Python 3.12."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and one.co_name in WITHIN:
            yield from {*one.co_varnames, *one.co_cellvars, *_repeated(one)} - {*code.co_names, *one.co_freevars}


def _asked(node: ast.AST) -> str:
    """Return the name of what may be a function or a property."""
    return node.attr if isinstance(node, ast.Attribute) else called(node) if isinstance(node, ast.Call) else ""


def _looked_for(node: ast.AST) -> Iterator[str]:
    """Yield the key that a comparison looks for in a table."""
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and type(node.left.value) is str:
        yield from (f"[{node.left.value}]" for how in node.ops if isinstance(how, ast.In | ast.NotIn))


class _Reads:
    def __init__(self, names: Names, *, turns: bool) -> None:
        self._names, self._turns = names, turns

    def visit(self, node: ast.AST, *, bare: bool, compared: bool = False) -> Iterator[str]:
        """Yield what is read: ``bare`` of what is asked whether it is true, ``compared`` of what is a number."""
        if isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            for part in node.values if isinstance(node, ast.BoolOp) else [node.operand]:
                yield from self.visit(part, bare=bare, compared=compared)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._of(node, bare=bare, compared=compared)
            if isinstance(node, ast.Attribute) and not compared:
                yield from self._object(node.value)
        elif isinstance(node, ast.Call):
            yield from self._call(node, compared=compared)
        else:
            if (name := self._names.name(node)) is not None:
                yield name
            yield from _looked_for(node)
            number = compared or isinstance(node, ast.Compare | ast.BinOp)
            for one in ast.iter_child_nodes(node):
                yield from self.visit(one, bare=False, compared=number)

    def _call(self, node: ast.Call, *, compared: bool) -> Iterator[str]:
        if isinstance(node.func, ast.Attribute):
            yield from self._object(node.func.value)
            yield from self._out_of(node, node.func.value)
        held = called(node) != "len"
        for one in (*node.args, *(word.value for word in node.keywords)):
            yield from self.visit(one, bare=not held, compared=compared)

    def _out_of(self, node: ast.Call, object_: ast.AST) -> Iterator[str]:
        """Yield what is read where a call gives out what its object holds: a key that is named, or any."""
        name, key = self._names.name(object_), node.args[0] if node.args else None
        if called(node) in _GETS and isinstance(key, ast.Constant) and type(key.value) is str:
            yield f"[{key.value}]"
            if name is not None:
                yield name + HELD
        if called(node) in _TAKES and name is not None:
            yield name + TAKEN

    def _of(self, node: ast.AST, *, bare: bool, compared: bool) -> Iterator[str]:
        name = self._names.name(node)
        if name is not None:
            yield name
            if not bare:
                yield name + HELD
            if compared or not self._turns:
                yield name + GROWN

    def _object(self, node: ast.AST) -> Iterator[str]:
        name = self._names.name(node)
        if name is not None and not (isinstance(node, ast.Name) and node.id in SELF):
            yield name

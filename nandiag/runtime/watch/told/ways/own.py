"""One function that was run behind a bad answer: where it asks, and what its good turns do as well (worker)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TypeAlias

from nandiag.runtime.evidence.around.place import end_of
from nandiag.runtime.frames import USER, Frame, kind_of, span
from nandiag.runtime.frames.text import nodes_of, tree_of
from nandiag.runtime.watch.told.ways.followed import Followed
from nandiag.runtime.watch.told.ways.names import ANY, SELF, Names
from nandiag.runtime.watch.told.ways.text import BRANCHES, GIVEN, Span, Text, adds, called, span_of, text_of

_REPEATS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_MAPS = frozenset({"map", "starmap"})


class Own:
    """A ``function`` that was run, with its ``text``."""

    def __init__(self, function: Followed, text: Text) -> None:
        self.function, self.text, self.names = function, text, Names(text, function.code)
        self._at = None if function.asks is None else self._place(*function.asks)
        self._counts: set[str] | None = None

    def _place(self, line: int, instruction: int) -> Span:
        """Return where the answer is read; of a statement that asks its condition, for a jump has all of it."""
        at = span(Frame(self.function.code, instruction)) or (line, line, -1, -1)
        tests = (node.test for node in self.text.at.get(line, ()) if hasattr(node, "test") and span_of(node) == at)
        return next(map(span_of, tests), at)

    def asks(self, node: ast.AST) -> bool:
        """Whether the answer was read within ``node``."""
        if self._at is None or not hasattr(node, "lineno"):
            return False
        line, last, start, end = self._at
        if start < 0:
            return self.is_at(line, node)
        return (node.lineno, node.col_offset) <= (line, start) and (last, end) <= end_of(node)  # type: ignore[attr-defined, arg-type]

    def is_at(self, line: int, node: ast.AST) -> bool:
        """Whether a ``line`` is one of those of ``node``."""
        return node.lineno <= line <= end_of(node)[0]  # type: ignore[attr-defined, no-any-return, arg-type]

    def is_behind(self, node: ast.AST, other: ast.AST) -> bool:
        """Whether ``node`` stands behind all of ``other``."""
        return end_of(other) <= (node.lineno, node.col_offset)  # type: ignore[attr-defined, arg-type]

    def is_on_the_way_out(self, node: ast.AST, last: int) -> bool:
        """Whether ``node`` is run behind the ``last`` line whatever that did: as a way out of a block goes by it."""
        if isinstance(node, ast.With | ast.AsyncWith):
            return node.body[0].lineno <= last <= end_of(node)[0]
        around = self.text.around(node)
        return any(isinstance(outer, ast.Try) and part in outer.finalbody for outer, part in around)

    def is_counted(self, test: ast.AST) -> bool:
        """Whether a condition asks of what turns count, or go through."""
        if self._counts is None:
            scope, found = self.text.scope(test), set[str]()
            for one in self.text.adding:
                names = self.names.targets(one)
                found |= names if self.text.scope(one) is scope else {name for name in names if name[0] == "."}
            self._counts = found
        return bool(self.names.reads(test) & self._counts)

    def is_counted_elsewhere(self, node: ast.AST) -> bool:
        """Whether what ``node`` adds to is added to by other functions of the file as well."""
        names = {name for name in self.names.targets(node) if name[0] == "."} if adds(node) else set[str]()
        others = (one for one in self.text.adding if self.text.scope(one) is not self.text.scope(node))
        return bool(names) and any(self.names.targets(one) & names for one in others)

    def called_at(self, frame: Frame, line: int) -> ast.Call | None:
        """Return the call that an instruction makes; by its ``line`` where columns are not known."""
        at = span(frame)
        if at is not None:
            return self.text.calls.get(at)
        calls = [one for node in self.text.at.get(line, ()) for one in ast.walk(node) if isinstance(one, ast.Call)]
        return calls[0] if len(calls) == 1 else None

    def asked_before(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what is asked before ``node`` in the same expression, that it is run or not by."""
        for outer, part in self.text.around(node):
            if isinstance(outer, ast.IfExp) and part is not outer.test:
                yield outer.test
            elif isinstance(outer, ast.BoolOp):
                yield from outer.values[: outer.values.index(part)]  # type: ignore[arg-type]

    def is_done_as_well(self, node: ast.AST, branch: ast.AST) -> bool | None:
        """Whether turns without such an answer do what ``node`` does too, which is run for a ``branch``; None: perhaps.

        They go the other way there, and may ask for more before they do so.
        """
        loop, doing, perhaps = self.text.loop(node), _doing(node), False
        same = self._side(node, branch)
        allowed = {*self._conditions(node, loop), branch}
        for one in ast.walk(loop):
            if one is node or type(one) not in _ALIKE or _doing(one) != doing or self._side(one, branch) == same:
                continue
            if not set(self._conditions(one, loop)) - allowed:
                return True
            perhaps = True
        return None if perhaps else False

    def _side(self, node: ast.AST, branch: ast.AST) -> str:
        """Return on which side of a condition a node is."""
        for outer, part in self.text.around(node):
            if outer is branch:
                return "else" if part in getattr(branch, "orelse", ()) else "then"
        return "behind" if self.is_behind(node, branch) else "before"

    def _conditions(self, node: ast.AST, loop: ast.AST) -> Iterator[ast.AST]:
        for outer, _ in self.text.around(node):
            if outer is loop:
                return
            if isinstance(outer, BRANCHES):
                yield outer


# Whether it is of the answer, of a value; and of each that is packed into a tuple, or has a name.
Found: TypeAlias = Callable[[ast.AST], bool | None]
Packed: TypeAlias = list[bool | None] | dict[str, bool | None]


class Bound:
    """What a function's arguments stand for: whether each was ``found`` to be of the answer, by the text of the call.

    The ``bad`` ones are known to be bad numbers. ``packed`` are those that ``rest`` holds, and ``packed_words``.
    """

    def __init__(self, code: CodeType, bad: frozenset[str]) -> None:
        first, names = code.co_argcount, code.co_varnames
        more = first + code.co_kwonlyargcount
        self.rest = names[more] if code.co_flags & inspect.CO_VARARGS else None
        more += self.rest is not None
        self.words = names[more] if code.co_flags & inspect.CO_VARKEYWORDS else None
        self._names, self._bad = names[:first], bad
        self.packed, self.packed_words = list[bool | None](), dict[str, bool | None]()
        self.found: dict[str, bool | None] = dict.fromkeys(names[: more + (self.words is not None)], False)
        self._is_by_fact()

    def gives(self, call: ast.Call, found_of: Found, packed_in: Callable[[ast.AST], Packed | None]) -> None:
        """Take the arguments of a ``call``."""
        given, all_known = list[bool | None](), True
        for one in call.args:
            packed = packed_in(one.value) if isinstance(one, ast.Starred) else [found_of(one)]
            given += packed if isinstance(packed, list) else []
            all_known = all_known and (isinstance(packed, list) or found_of(one) is False)
        names = self._names[self._bound(call) :]
        self.found |= dict(zip(names, given, strict=False))
        self.packed = given[len(names) :]
        all_known = all_known and (not self.packed or self.rest is not None)
        if self.rest is not None:
            self.found[self.rest] = _any(self.packed)
        for word in call.keywords:
            packed = packed_in(word.value) if word.arg is None else {word.arg: found_of(word.value)}
            self._gives_words(packed if isinstance(packed, dict) else {})
            all_known = all_known and (isinstance(packed, dict) or found_of(word.value) is False)
        self._is_by_fact()
        if not all_known:
            self.is_not_known(but=names[: len(given)])

    def _gives_words(self, words: Mapping[str, bool | None]) -> None:
        for name, found in words.items():
            if name in self.found:
                self.found[name] = found
            elif self.words is not None:
                self.packed_words[name] = found
                self.found[self.words] = _any([*self.packed_words.values()])

    def _bound(self, call: ast.Call) -> int:
        """Return how many arguments stand before those of the call: the object of a method."""
        first = call.args[0] if call.args else None
        by_name = isinstance(call.func, ast.Name) and isinstance(first, ast.Name) and first.id in SELF
        return int(bool(self._names) and self._names[0] in SELF and not by_name)

    def _is_by_fact(self) -> None:
        """Where as many are bad numbers as are made of the answer, it is these."""
        if self._bad and len(self._bad) >= list(self.found.values()).count(True):
            self.found = {name: False if found is True else found for name, found in self.found.items()}
        self.found |= dict.fromkeys(self._bad, True)

    def is_not_known(self, but: Sequence[str] = ()) -> bool:
        """Any may be of the answer, where one is that was given; returns whether that is so."""
        given = any(found is not False for found in (*self.found.values(), *self.packed)) or bool(but)
        names = [name for name, found in self.found.items() if found is False and name not in but]
        self.found |= dict.fromkeys(names if given else (), None)
        return given


def _any(found: Sequence[bool | None]) -> bool | None:
    return True if True in found else None if None in found else False


_ALIKE = {ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.Call}


def is_repeated(function: Followed) -> bool:
    """Whether what is under way in a function is run again by a comprehension, or by ``map``."""
    tree, text = tree_of(function.code.co_filename), text_of(function.code.co_filename)
    if tree is None or text is None or function.asks is None:
        return False
    own = Own(function, text)
    around = [node for node in nodes_of(tree) if isinstance(node, (*_REPEATS, ast.Call)) and own.asks(node)]
    inner = around[-1:]  # itself, of which C code calls what is to be run
    calls = [one for node in inner if isinstance(node, ast.Call) for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(isinstance(node, _REPEATS) for node in around) or any(called(one) in _MAPS for one in calls)


def gives_turn(code: CodeType, line: int) -> bool:
    """Whether a ``line`` of a generator gives a turn to what goes through it."""
    text = text_of(code.co_filename) if code.co_flags & inspect.CO_GENERATOR else None
    return text is not None and any(yielded(node) is not None for node in text.at.get(line, ()))


def yielded(node: ast.AST) -> ast.Yield | ast.YieldFrom | None:
    """Return what a statement gives to what goes through its generator, if it does."""
    value = getattr(node, "value", None) if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign) else None
    return value if isinstance(value, ast.Yield | ast.YieldFrom) else None


def _doing(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return ast.unparse(node)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
    value = "added to" if adds(node) else ast.unparse(node.value) if node.value is not None else ""  # type: ignore[attr-defined]
    return f"{' '.join(map(ast.unparse, targets))} = {value}"


def set_in(code: CodeType, *, surely: bool) -> set[str]:
    """Return what a function gives a value that outlives it, ``surely`` or under a condition of its own alone."""
    text = text_of(code.co_filename) if kind_of(code.co_filename) == USER else None
    found = set[str]()
    if text is None:
        return found
    names = Names(text, code)
    for function in text.functions.get(code.co_name, ()):
        if code.co_firstlineno != min([function.lineno, *(one.lineno for one in function.decorator_list)]):  # type: ignore[attr-defined]
            continue
        for node in ast.walk(function):
            if surely or any(isinstance(outer, BRANCHES) for outer, _ in text.around(node)):
                found |= names.targets(node) if isinstance(node, GIVEN) else set()
                if isinstance(node, ast.Call):
                    found |= {names.receiver(node) or "", *names.set_by_name(node, {})} - {ANY}
    return {name for name in found if name and not names.is_own(name)}

"""Refuses what a step would write a second time into what other threads of the script have in hand too (worker)."""

from __future__ import annotations

import ast
import dis
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

from nandiag.runtime.belongings.reach import form_of, is_array, is_object
from nandiag.runtime.belongings.theirs import Theirs, held_as
from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.frames.text import tree_of
from nandiag.runtime.guard import Refused

_WRITES = frozenset({
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "reverse",
    "sort", "rotate", "add", "discard", "update", "setdefault", "move_to_end", "intersection_update",
    "difference_update", "symmetric_difference_update", "__setitem__", "__delitem__", "fill", "put",
})  # fmt: skip


class Shared:
    """Hears of each call that the replaying thread makes, while it is entered.

    What another thread takes out of a list, or begins anew, cannot be put back: nobody knows what of it is whose. Where
    no thread of the script has anything in hand, or the run ``ends``, there is nothing to hear of.
    """

    def __init__(self, theirs: Theirs, *, ends: bool) -> None:
        self._theirs = theirs
        self._hears = not ends and bool(theirs.containers or any(theirs.names.values()))
        self._codes: dict[CodeType, _Words | None] = {}

    def __enter__(self) -> None:
        """Hear from now on; raises Refused where the script itself hears of each call, as a profiler does."""
        if not self._hears:
            return
        if sys.getprofile() is not None or sys.gettrace() is not None:
            self._hears = False
            raise Refused("other threads and a tracer or profiler run beside the step, and the run goes on after it")
        sys.setprofile(self._heard)

    def __exit__(self, *_: object) -> None:
        """Hear no more."""
        if self._hears:
            sys.setprofile(None)

    def _heard(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            one = getattr(called, "__self__", None)
            if called.__name__ in _WRITES and (form_of(one) or is_array(one)) and self._is_theirs(one, frame):
                _refuse(called.__name__)
        elif event == "call":
            words = self._words(frame.f_code)
            if words is not None:
                self._begins(frame, words)

    def _words(self, code: CodeType) -> _Words | None:
        if code not in self._codes:
            words = _words_of(code) if kind_of(code.co_filename) == USER else None
            self._codes[code] = words if words is not None and any(words) else None
        return self._codes[code]

    def _begins(self, frame: FrameType, words: _Words) -> None:
        """A function of the script's is called: refuse what its text says that it will write."""
        self._refuse_names(frame.f_globals, words.stored_global)
        held = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in words.named)]
        objects = [one for one in held if is_object(one)]
        for one in objects:
            for holder in (one, getattr(one, "__dict__", None)):
                self._refuse_names(holder, words.stored)
        for name in words.changed:
            found = [frame.f_locals.get(name), frame.f_globals.get(name), *(held_as(one, name) for one in objects)]
            if any(self._is_theirs(one, frame) for one in found if form_of(one) or is_array(one)):
                _refuse(name)

    def _refuse_names(self, holder: object, stored: frozenset[str]) -> None:
        both = self._theirs.names.get(id(holder), set()) & stored
        if both:
            _refuse(min(both))

    def _is_theirs(self, one: object, frame: FrameType) -> bool:
        """Whether another thread has a container in hand, or gives the name another one that it was found by."""
        if id(one) in self._theirs.containers:
            return True
        namespaces = [frame.f_globals, *(vars(own) for own in frame.f_locals.values() if hasattr(own, "__dict__"))]
        return any(names.get(name) is one for names in namespaces for name in self._theirs.names.get(id(names), ()))


class _Words(NamedTuple):
    """Names in a function's text: globals that it reads and sets, attributes that it sets, what it changes in place."""

    named: frozenset[str]
    stored_global: frozenset[str]
    stored: frozenset[str]
    changed: frozenset[str]


def _words_of(code: CodeType) -> _Words | None:
    words = [(one.opname, one.argval) for one in dis.get_instructions(code)]

    def of(op: str) -> frozenset[str]:
        return frozenset(name for found, name in words if found == op)

    stored, changed = (of("STORE_GLOBAL"), of("STORE_ATTR")), _changed_in(code)
    return _Words(of("LOAD_GLOBAL"), *stored, changed) if any(stored) or changed else None


def _changed_in(code: CodeType) -> frozenset[str]:
    """Return the names of what the lines of ``code`` write a part of, or add to in place."""
    tree, lines = tree_of(code.co_filename), {line for _, _, line in code.co_lines()}
    found: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and node.lineno in lines:
            found.update(_last_name(node.value))
        elif isinstance(node, ast.AugAssign) and node.lineno in lines:
            found.update(_last_name(node.target))
    return frozenset(found)


def _last_name(node: ast.expr) -> list[str]:
    return [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []


def _refuse(name: str) -> None:
    raise Refused(f"the step writes into what another thread uses as well ({name}), and the run goes on after it")

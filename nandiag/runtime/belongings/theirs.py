"""Tells what of the script's objects its other threads write, which a replay must leave to them (worker)."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Iterable
from types import CodeType, FrameType, FunctionType
from typing import Any

from nandiag.runtime.belongings.reach import content, form_of, is_array, is_filled, is_object, slots_of
from nandiag.runtime.frames import USER, kind_of

_MOST_CODES = 500


class Theirs:
    """What the code that ``threads`` run now may write: ``names`` by the id of the dict they are in, and containers.

    Read from their frames and from the functions these name. Of a container it cannot be told whether it is written or
    read; of a name it can.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self.names: dict[int, set[str]] = {}
        self.cells: set[str] = set()  # variables of functions around theirs, by name
        self.containers: dict[int, object] = {}
        self._seen: set[tuple[int, ...]] = set()
        frames = sys._current_frames()
        frames.pop(
            threading.get_ident(), None
        )  # ours would hold itself by it, and all that called it with their locals
        there = frozenset(threads)
        for thread in there:
            self._take_frames(frames.get(thread))
        for one in threading.enumerate():
            if one.ident in there:
                self._take_work(one)

    def _take_work(self, thread: threading.Thread) -> None:
        """Take what a thread is to call and has not called yet, as a timer."""
        for word in vars(thread).values():
            function = getattr(word, "__func__", word)
            if type(function) is FunctionType and kind_of(function.__code__.co_filename) == USER:
                cells = [content(cell) for cell in function.__closure__ or ()]
                self._take(function.__code__, function.__globals__, [*cells, getattr(word, "__self__", None)])

    def _take_frames(self, frame: FrameType | None) -> None:
        while frame is not None:
            if kind_of(frame.f_code.co_filename) == USER:
                self._take(frame.f_code, frame.f_globals, list(frame.f_locals.values()))
            frame = frame.f_back

    def _take(self, code: CodeType, namespace: dict[str, Any], held: list[object]) -> None:
        """Take one code object that runs with ``namespace`` as its globals and has ``held`` at hand."""
        key = (id(code), *(id(one) for one in held if is_object(one)))
        if key in self._seen or len(self._seen) >= _MOST_CODES:
            return
        self._seen.add(key)
        words = [(one.opname, one.argval) for one in dis.get_instructions(code)]
        loaded = {name for op, name in words if op in {"LOAD_GLOBAL", "LOAD_NAME"}}
        held = [*held, *(namespace[name] for name in loaded if name in namespace)]
        self.names.setdefault(id(namespace), set()).update(name for op, name in words if op == "STORE_GLOBAL")
        self.cells |= {name for op, name in words if op == "STORE_DEREF"}
        objects = [one for one in held if is_object(one)]
        for one in held:
            self._hold(one, objects)
            if is_object(one):
                self._take_attributes(one, words)

    def _take_attributes(self, one: Any, words: list[tuple[str, Any]]) -> None:
        own = getattr(one, "__dict__", None)
        written = {name for op, name in words if op == "STORE_ATTR"}
        for holder in (one, own):  # slots are the object's own, attributes its dict's
            self.names.setdefault(id(holder), set()).update(written)
        for name in {name for op, name in words if op in {"LOAD_ATTR", "LOAD_METHOD"}}:
            self._hold(held_as(one, name), [one])
            method = getattr(type(one), name, None)
            if type(method) is FunctionType:
                self._take(method.__code__, method.__globals__, [one])

    def _hold(self, one: Any, given: list[object]) -> None:
        """Take what is at hand; a function of the script's may be ``given`` the objects that are at hand as well."""
        if form_of(one) is not None or is_array(one):
            self.containers[id(one)] = one
        if type(one) is FunctionType and kind_of(one.__code__.co_filename) == USER:
            cells = [content(cell) for cell in one.__closure__ or ()]
            self._take(one.__code__, one.__globals__, [*cells, *given])


def held_as(one: Any, name: str) -> object:
    """Return what the object holds under ``name``, without asking code of its class; None where that is nothing."""
    own = getattr(one, "__dict__", {})
    slots = {slot.__name__: slot for slot in slots_of(type(one)) if is_filled(slot, one)}
    return own.get(name) if name in own or name not in slots else slots[name].__get__(one)

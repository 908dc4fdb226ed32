"""Reading a pickle that holds plain values alone, without unpickling: nothing in it can name or call anything (reader).

torch's flight recorder writes its dumps as pickles, and who may write into a log folder must not thereby run code in
the reader. The opcodes are told apart by the standard library's ``pickletools.genops``, which executes none; the few
that build dicts, lists, tuples, text, numbers, booleans and None are carried out here, and any other is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from io import BytesIO
from typing import Any

MOST_BYTES = 64 * 1024 * 1024
MOST_OPCODES = 8_000_000
_MARK = object()
_IGNORED = frozenset({"PROTO", "FRAME"})
_VALUES = frozenset(
    {
        "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "BINUNICODE",
        "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BINSTRING", "SHORT_BINSTRING", "STRING",
    }
)  # fmt: skip
_MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple, "MARK": lambda: _MARK,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack and the memory of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}
        self.acts: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(("BINPUT", "LONG_BINPUT", "PUT"), self._put),
            **dict.fromkeys(("BINGET", "LONG_BINGET", "GET"), self._get),
            "MEMOIZE": lambda _: self._put(len(self.memory)),
            "APPEND": lambda _: self._extend([self.stack.pop()]),
            "APPENDS": lambda _: self._extend(self._marked()),
            "SETITEM": lambda _: self._update([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda _: self._update(self._marked()),
            "LIST": lambda _: self.stack.append(self._marked()),
            "TUPLE": lambda _: self.stack.append(tuple(self._marked())),
            "DICT": self._dict,
        }

    def _put(self, index: int) -> None:
        self.memory[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        self.stack.append(self.memory[index])

    def _marked(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _extend(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _update(self, items: list[Any]) -> None:
        self._top(dict).update(zip(items[::2], items[1::2], strict=True))

    def _dict(self, _: Any) -> None:
        items = self._marked()
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"no {kind.__name__} where one must be")
        return self.stack[-1]

    def do(self, name: str, value: Any) -> None:
        """Carry out one opcode; raises ValueError for one that does more than build plain values."""
        if name in _VALUES:
            self.stack.append(value)
        elif name in _MADE:
            self.stack.append(_MADE[name]())
        elif name in _TUPLES:
            size = _TUPLES[name]
            self.stack[-size:] = [tuple(self.stack[-size:])]
        elif name in self.acts:
            self.acts[name](value)
        elif name not in _IGNORED:
            raise ValueError(f"{name} is no part of a plain value")


def loads(data: bytes) -> Any:
    """Return the value that a pickle of plain values holds; raises ValueError for any other, and for torn ones."""
    if len(data) > MOST_BYTES:
        raise ValueError("too large")
    machine = _Machine()
    try:
        for count, (opcode, value, _) in enumerate(pickletools.genops(BytesIO(data))):
            if opcode.name == "STOP":
                return machine.stack[-1] if len(machine.stack) == 1 and machine.stack[0] is not _MARK else _torn()
            if count >= MOST_OPCODES:
                raise ValueError("too many opcodes")
            machine.do(opcode.name, value)
    except (LookupError, TypeError, OverflowError, UnicodeError, AttributeError) as error:
        raise ValueError(f"not a whole pickle: {error!r}") from error
    return _torn()


def _torn() -> Any:
    raise ValueError("not a whole pickle")

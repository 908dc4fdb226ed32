"""What the script's functions note on modules and classes that are not its own (``nn.Linear.used += 1``; worker)."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nandiag.runtime.belongings.reach import is_of_script
from nandiag.runtime.frames import USER, kind_of

_LOADS, _STEPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"}), frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_DEEPEST = 4


def noted_by(function: FunctionType) -> Iterator[Callable[[], object]]:
    """Yield what puts back each note that a function of the script's may make; of other functions nothing."""
    if kind_of(function.__code__.co_filename) != USER:
        return
    names, ways = _writes(function.__code__)
    owners = [owner for way in ways if (owner := _at(function.__globals__, way)) is not None] if names else []
    for owner in {id(one): one for one in owners}.values():
        yield partial(_put_back, owner, {name: vars(owner).get(name, _put_back) for name in names})


@lru_cache(maxsize=4096)
def _writes(code: CodeType) -> tuple[frozenset[str], frozenset[tuple[str, ...]]]:
    """Return the attributes that code, and what is defined in it, sets, and the ways from globals that it takes."""
    names, ways = set(), set()
    way: tuple[str, ...] = ()
    for one in dis.get_instructions(code):
        if one.opname in _LOADS:
            way = (one.argval,)
        elif one.opname in _STEPS and way:
            way = (*way, one.argval)
        elif one.opname == "STORE_ATTR":
            names.add(one.argval)
        ways.add(way[:_DEEPEST])
        way = way if one.opname in _LOADS | _STEPS | {"CACHE", "EXTENDED_ARG", "PRECALL"} else ()
    if {"setattr", "delattr"} & set(code.co_names):
        names |= {word for word in code.co_consts if isinstance(word, str) and word.isidentifier()}
    for inner in (word for word in code.co_consts if isinstance(word, CodeType)):
        more, further = _writes(inner)
        names, ways = names | more, ways | further
    return frozenset(names), frozenset(ways - {()})


def _at(names: dict[str, Any], way: tuple[str, ...]) -> Any:
    """Return the module or class of others that a way from globals leads to, without asking anybody's code."""
    one: Any = names.get(way[0])
    for name in way[1:]:
        one = vars(one).get(name) if isinstance(one, ModuleType | type) else None
    return one if isinstance(one, ModuleType | type) and not is_of_script(one) else None


def _put_back(owner: Any, notes: dict[str, Any]) -> None:
    for name, value in notes.items():
        now = vars(owner).get(name, _put_back)
        if now is not value:
            delattr(owner, name) if value is _put_back else setattr(owner, name, value)

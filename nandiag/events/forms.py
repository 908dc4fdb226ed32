"""Dataclasses from plain JSON values, checked against their annotations, so that a torn or forged file cannot mislead.

Known: ``int``, ``float``, ``str``, ``bool``, ``object``, ``tuple``, ``dict``, frozen dataclasses, and unions of them.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

Convert = Callable[[Any], Any]
# Python reads longer numbers than it can write; nothing that is counted here comes near this one.
_LARGEST = 10**18
# A number is looked at (a count may be too large), and a list built anew.
_AS_THEY_ARE: frozenset[Any] = frozenset({str, bool, float, type(None)})
_SAID = frozenset({str, bool, int, type(None)})
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def build(cls: type, data: Any) -> Any:
    """Build ``cls`` from a JSON object, ignoring unknown fields; raises TypeError when a value does not fit."""
    if not isinstance(data, dict):
        raise TypeError(f"{cls.__name__} needs an object, not {type(data).__name__}")
    return cls(
        **{
            name: value if type(value := data[name]) in fitting else convert(value)
            for name, fitting, convert in _fields(cls)
            if name in data
        }
    )


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can say it: dataclasses as objects, tuples as lists, non-finite floats as strings."""
    if type(value) in _SAID:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@cache
def _fields(cls: type) -> tuple[tuple[str, frozenset[type], Convert], ...]:
    """Return of each field its name, the types whose values fit as they are, and what makes the others fit."""
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return tuple((name, _fitting(hints[name]), _converter(hints[name])) for name in names)


def _fitting(hint: Any) -> frozenset[type]:
    return _AS_THEY_ARE.intersection(typing.get_args(hint) if _is_union(hint) else (hint,))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _converter(hint: Any) -> Convert:
    origin = typing.get_origin(hint)
    if _is_union(hint):
        return _any_of(typing.get_args(hint))
    if origin is tuple:
        return _tuple_of(typing.get_args(hint))
    if origin is dict:
        return _dict_of(_converter(typing.get_args(hint)[1]))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return lambda value: build(hint, value)
    return _SCALARS[hint]


def _any_of(hints: tuple[Any, ...]) -> Convert:
    """Try the parts of a union in order; the type that stands for one of them goes there at once."""
    known = {hint: _converter(hint) for hint in hints}
    parts, nothing = [known[hint] for hint in hints if hint is not type(None)], type(None) in known

    def convert(value: Any) -> Any:
        if value is None and nothing:
            return None
        direct = known.get(type(value))
        for attempt in parts if direct is None else (direct, *parts):
            try:
                return attempt(value)
            except TypeError:
                continue
        raise TypeError(f"unexpected {type(value).__name__}")

    return convert


def _tuple_of(parts: tuple[Any, ...]) -> Convert:
    each = _converter(parts[0])
    fixed = None if len(parts) == 2 and parts[1] is Ellipsis else len(parts)

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple) or (fixed is not None and len(value) != fixed):
            raise TypeError("expected a list")
        return tuple(each(item) for item in value)

    return convert


def _dict_of(each: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError("expected an object")
        return {str(key): each(item) for key, item in value.items()}

    return convert


def _only(*allowed: type) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) not in allowed:
            raise TypeError(f"expected {allowed[0].__name__}, found {type(value).__name__}")
        return value

    return convert


def _float(value: Any) -> float:
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    try:
        return float(value)
    except OverflowError as error:
        raise TypeError("a number beyond any float") from error


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected int, found {type(value).__name__}")
    if not -_LARGEST <= value <= _LARGEST:
        raise TypeError("a number beyond any count")
    return value


_SCALARS: dict[Any, Convert] = {
    int: _int,
    float: _float,
    str: _only(str),
    bool: _only(bool),
    type(None): _only(type(None)),
    object: lambda value: value,
}

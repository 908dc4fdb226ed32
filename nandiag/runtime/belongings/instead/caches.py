"""Copies of ``lru_cache``s: what is in one, in which order and how often asked cannot be put back (worker)."""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

_CACHE = type(functools.lru_cache(id))
_LINK = "_lru_list_elem"


def is_cache(kind: type) -> bool:
    """Whether it is what ``functools.lru_cache`` and ``functools.cache`` make of a function."""
    return kind is _CACHE


def copied_cache(one: Any, inner: Callable[[Any], Any]) -> Any:
    """Return a cache that holds what ``one`` does, in its order; ``inner`` gives the function that it is to call.

    Raises TypeError where it cannot be told what that is.
    """
    parameters = one.cache_parameters()
    held, mark = _held(one)
    waiting = deque(result for _, result in held)
    function = inner(one.__wrapped__)

    def make(*args: Any, **kwargs: Any) -> Any:
        return waiting.popleft() if waiting else function(*args, **kwargs)

    again: Any = functools.update_wrapper(functools.lru_cache(**parameters)(make), one)
    again.__wrapped__ = one.__wrapped__
    for key, _ in held:
        args, kwargs = _words(key, mark, typed=parameters["typed"])
        again(*args, **kwargs)
    if waiting:
        raise TypeError("a key was not read as it was made")
    return again


def _held(one: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the pairs of key and result, the least lately used first, and what stands before words in a key."""
    seen = [part for part in gc.get_referents(one) if not (isinstance(part, type) and part.__name__ == _LINK)]
    seen = seen[1:] if seen and seen[0] is _CACHE else seen
    size, bounded = one.cache_info().currsize, one.cache_parameters()["maxsize"] is not None
    links, rest = (seen[: 2 * size], seen[2 * size :]) if bounded else ([], seen)
    if not rest or type(rest[0]) is not dict or len(rest[0]) != size:
        raise TypeError("a cache does not tell what it holds")
    pairs = list(zip(links[::2], links[1::2], strict=True)) if bounded else list(rest[0].items())
    return pairs, next((part for part in rest if type(part) is object), None)


def _words(key: Any, mark: Any, *, typed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not isinstance(key, tuple):
        return (key,), {}
    at = next((place for place, part in enumerate(key) if part is mark), None)
    if at is None:
        return key[: len(key) // 2] if typed else key, {}
    # Behind the words stand, where types count, those of all values: n + 1 + 2 w + n + w of them.
    end = at + 1 + 2 * ((len(key) - 2 * at - 1) // 3) if typed else len(key)
    return key[:at], dict(zip(key[at + 1 : end : 2], key[at + 2 : end : 2], strict=True))

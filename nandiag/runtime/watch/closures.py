"""A closure that brings an optimizer its losses and gradients: a border lies behind each call of it (worker)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nandiag.runtime.guard import guarded


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the closure that ``step(self, closure)`` was given, None when it was given none."""
    if len(args) == 1 and not kwargs:
        return None
    closure = kwargs.get("closure")
    return closure if closure is not None else next((word for word in args[1:] if callable(word)), None)


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[[], Any], watched: Callable[[], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``step`` with ``watched`` in the place of ``closure``."""
    if kwargs.get("closure") is closure:
        return args, {**kwargs, "closure": watched}
    return tuple(watched if word is closure else word for word in args), kwargs


def watched(closure: Callable[[], Any], begins: Callable[[int], None], ends: Callable[[], None]) -> Callable[[], Any]:
    """Return ``closure`` with ``begins`` called before it, with how often it was called before, and ``ends`` behind it.

    The optimizer calls this, not our hooks: what is ours in it must fail open by itself.
    """
    begins, ends = guarded("sentinel")(begins), guarded("sentinel")(ends)
    evaluations = 0

    def call() -> Any:
        nonlocal evaluations
        begins(evaluations)
        evaluations += 1
        result = closure()
        ends()
        return result

    return call

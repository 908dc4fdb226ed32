"""Where in the user's program something happened: module path, op and user frame."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """One place: module path + op + user frame; every part may be unknown (``None``).

    ``module`` is the fully qualified name without wrapper prefixes: ``""`` is the root module, ``None`` is outside all
    modules. ``op`` is the aten overload (``aten.exp.default``); ``node`` the autograd node in backward
    (``SqrtBackward0``) and ``forward_op`` the aten op that made it. ``column`` is the half-open range ``(from, to)``
    of the expression, 0-based, in characters of ``source``, the text of the line.
    """

    module: str | None = None
    module_class: str | None = None
    op: str | None = None
    node: str | None = None
    forward_op: str | None = None
    file: str | None = None
    line: int | None = None
    column: tuple[int, int] | None = None
    function: str | None = None
    source: str | None = None

"""Which statements write into memory that the script has handed to numpy, by their text (worker).

``weight.grad.numpy()[:] += peers[step]`` is no arithmetic that numpy complains of, and lays what it is given there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from nandiag.runtime.evidence.around.place import Place, imported, place_of, root
from nandiag.runtime.frames import Frame, Trail, best, places_on
from nandiag.runtime.frames import Place as At


class Writes(NamedTuple):
    """A statement that writes there, and the names of what it lays there."""

    file: str
    line: int
    names: frozenset[str]


def writes_at(trail: Trail) -> Writes | None:
    """Return the statement that called for an array, where it writes into that itself; None of one that reads it.

    Where it gives it a name, the first statement behind it that writes into what has that.
    """
    frame = next((one for one in map(Frame._make, places_on(trail, 1)[0])), None)
    return None if frame is None else _writes(frame.code, frame.instruction)


@lru_cache(maxsize=256)
def _writes(code: CodeType, instruction: int) -> Writes | None:
    frame = Frame(code, instruction)
    place = place_of(frame)
    statement = None if place is None else place.statement
    if place is None or not isinstance(statement, ast.AugAssign | ast.Assign):
        return None
    if not any(one in place.nodes and isinstance(one, ast.Subscript) for one in _targets(statement)):
        behind = _behind(place, statement)
        return None if behind is None else Writes(frame.file, behind.lineno, _laid(behind, place))
    return Writes(frame.file, frame.line, _laid(statement, place))


def _behind(place: Place, named: ast.AugAssign | ast.Assign) -> ast.AugAssign | ast.Assign | None:
    """Return the first statement of its function that writes into the array that ``named`` gives a name, if any."""
    (target, *more) = _targets(named)
    if named.value is not place.nodes[-1] or more or not isinstance(target, ast.Name):
        return None
    writes = (
        one for one in ast.walk(place.scope)
        if isinstance(one, ast.AugAssign | ast.Assign) and one.lineno > named.lineno
        if any(_is_into(at, target.id, anew=isinstance(one, ast.Assign)) for at in _targets(one))
    )  # fmt: skip
    return min(writes, key=lambda one: one.lineno, default=None)


def _is_into(target: ast.expr, name: str, *, anew: bool) -> bool:
    """Whether a target is in what has a ``name``; ``anew``: the name alone would be given to something else."""
    return root(target) == name and (isinstance(target, ast.Subscript) or not anew)


def _targets(statement: ast.AugAssign | ast.Assign) -> list[ast.expr]:
    return [statement.target] if isinstance(statement, ast.AugAssign) else statement.targets


def _laid(statement: ast.AugAssign | ast.Assign, place: Place) -> frozenset[str]:
    return frozenset(_names(statement.value)).difference(imported(place.nodes[0]))


@lru_cache(maxsize=256)
def names_at(places: Sequence[At]) -> frozenset[str]:
    """Return the names in the statement of the script's that numpy complained of, but for those of modules."""
    frame = best(tuple(map(Frame._make, places)))
    place = None if frame is None else place_of(frame)
    if place is None or place.statement is None:
        return frozenset()
    return frozenset(_names(place.statement)).difference(imported(place.nodes[0]))


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names there, but for those that only tell which element it is."""
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Subscript) and child is node.slice):
            yield from _names(child)

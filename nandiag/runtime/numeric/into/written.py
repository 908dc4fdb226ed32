"""Which statements write into memory that the script has handed to numpy, by their text (worker).

``weight.grad.numpy()[:] += peers[step]`` is no arithmetic that numpy complains of, and lays what it is given there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from nandiag.runtime.evidence.around.place import imported, place_of
from nandiag.runtime.frames import Frame, Place, Trail, best, places_on


class Writes(NamedTuple):
    """A statement that writes there, and the names of what it lays there."""

    file: str
    line: int
    names: frozenset[str]


def writes_at(trail: Trail) -> Writes | None:
    """Return the statement that called for an array, where it writes into that itself; None of one that reads it."""
    frame = next((one for one in map(Frame._make, places_on(trail, 1)[0])), None)
    return None if frame is None else _writes(frame.code, frame.instruction)


@lru_cache(maxsize=256)
def _writes(code: CodeType, instruction: int) -> Writes | None:
    frame = Frame(code, instruction)
    place = place_of(frame)
    statement = None if place is None else place.statement
    if place is None or not isinstance(statement, ast.AugAssign | ast.Assign):
        return None
    targets = [statement.target] if isinstance(statement, ast.AugAssign) else statement.targets
    if not any(one in place.nodes and isinstance(one, ast.Subscript) for one in targets):
        return None
    return Writes(frame.file, frame.line, frozenset(_names(statement.value)).difference(imported(place.nodes[0])))


@lru_cache(maxsize=256)
def names_at(places: Sequence[Place]) -> frozenset[str]:
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

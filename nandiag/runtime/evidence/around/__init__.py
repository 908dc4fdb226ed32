"""Read in the script's own text how the names in an expression came to their values (worker).

Nothing is run: only what the text leaves no doubt of is told. A name counts as known where one assignment before the
expression always runs ahead of it, and the name and what it is made of stay what they were up to the expression.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import replace

from nandiag.events.site import Around, Meaning
from nandiag.runtime.evidence.around.again import again, alike
from nandiag.runtime.evidence.around.block import beside
from nandiag.runtime.evidence.around.carried import carried
from nandiag.runtime.evidence.around.handed import handed_in
from nandiag.runtime.evidence.around.over_ranks.shifts import summed
from nandiag.runtime.evidence.around.place import Place, end_of, loaded, place_of, torch_by
from nandiag.runtime.evidence.around.returned import ends, returned
from nandiag.runtime.evidence.around.unchanged import bound, unchanged
from nandiag.runtime.evidence.around.written import restored, unkept, written
from nandiag.runtime.frames import USER, Frame
from nandiag.runtime.frames.text import nodes_of

_MOST_NAMES, _MOST_USES, _DEEPEST, _LONGEST = 8, 4, 4, 200
_HOLE = "__nandiag__"
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_WHOLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def around(frames: tuple[Frame, ...]) -> Around | None:
    """Return what the text says around the expression of the first of ``frames``; the others called it, in order."""
    try:
        return _around(frames)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _around(frames: tuple[Frame, ...]) -> Around | None:
    place = place_of(frames[0]) if frames else None
    if place is None or place.statement is None:
        return None
    statement, column = _on_one_line(place)
    names = tuple(_meanings(place, place, frames[1:]))[:_MOST_NAMES]
    uses = tuple(_uses(place, frames[1:]))[:_MOST_USES]
    aliased = [text for one in names if _ATTRIBUTE.fullmatch(text := one.text.partition("[")[0])]
    lines = tuple(written(place, aliased))
    loops = tuple(carried(place))[:_MOST_USES]
    told = names, uses, statement, column, lines, again(place), alike(place), loops, ends(place)
    kinds = tuple(_kinds(place, {one.name for one in names}))[:_MOST_NAMES]
    loads = tuple(restored(place, [one.text for one in (*names, *kinds)]))
    lost = tuple(unkept(place, aliased))
    return Around(*told, *beside(place, frames[1:]), torch_by(place.nodes[0]), kinds, loads, lost, tuple(summed(place)))


def _on_one_line(place: Place) -> tuple[str | None, tuple[int, int] | None]:
    """Return the statement in one line, and where in it the expression stands, where the latter takes several."""
    statement, node = place.statement, place.nodes[-1]
    if not isinstance(statement, _SIMPLE) or not isinstance(node, ast.expr) or node.lineno == end_of(node)[0]:
        return None, None
    whole, alone = ast.unparse(node), statement.value is node or isinstance(node, _WHOLE)
    left, right = ("", "") if alone else ("(", ")")
    text = ast.unparse(copy.deepcopy(statement, {id(node): ast.Name(_HOLE, ast.Load())}))
    first = text.find(_HOLE) + len(left)
    if first < len(left) or "\n" in text + whole or not (text + whole).isascii():
        return None, None
    return text.replace(_HOLE, left + whole + right), (first, first + len(whole))


def _meanings(place: Place, at: Place, callers: tuple[Frame, ...], depth: int = 0) -> Iterator[Meaning]:
    """Yield what the names in ``place`` stand for, and then the names in that, as long as it is so at ``at``, too."""
    for name in loaded(place.nodes[-1]):
        made = _assigned(place, name, at)
        if made is not None:
            value = made.nodes[-1]
            divides = not depth and _divides_elsewhere(place, name)
            yield Meaning(name, _text(value), place.file, getattr(value, "lineno", 0), divides=divides)
            if depth < _DEEPEST:
                yield from _meanings(made, at, callers, depth + 1)
        elif (back := _handed_back(place, name, at)) is not None:
            value = back.nodes[-1]
            yield Meaning(name, _text(value), place.file, getattr(value, "lineno", 0), inside=False)
        elif depth < _DEEPEST and (given := handed_in(at, name, callers)) is not None:
            yield from _of_caller(name, given, callers[1:], depth)


def _kinds(place: Place, known: set[str]) -> Iterator[Meaning]:
    """Yield the other names in the expression's statement that one assignment of the function alone binds."""
    nodes = list(nodes_of(place.scope))
    line = loaded(place.statement) if isinstance(place.statement, _SIMPLE) else ()
    for name in dict.fromkeys((*loaded(place.nodes[-1]), *line)):
        values = [value for one in nodes if isinstance(one, ast.stmt) and (value := _value(one, name)) is not None]
        if name not in known and len(values) == 1 and sum(name in bound(one) for one in nodes) == 1:
            yield Meaning(name, _text(values[0]), place.file, values[0].lineno)


def _divides_elsewhere(place: Place, name: str) -> bool:
    """Whether the function divides by ``name`` in another expression than this one."""
    own = set(map(id, ast.walk(place.nodes[-1])))
    divisions = [node for node in nodes_of(place.scope) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    return any(isinstance(one.right, ast.Name) and one.right.id == name and id(one) not in own for one in divisions)


def _of_caller(name: str, given: Place, callers: tuple[Frame, ...], depth: int) -> Iterator[Meaning]:
    """Yield what a caller hands in as ``name``: what it assigned to a name of its own, where it hands in one."""
    value = given.nodes[-1]
    if not isinstance(value, ast.Name):
        yield Meaning(name, _text(value), given.file, getattr(value, "lineno", 0), inside=False)
        return
    for one in _meanings(given, given, callers, depth + 1):
        yield replace(one, name=name if one.name == value.id else one.name, inside=False)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else ""


def _assigned(place: Place, name: str, at: Place) -> Place | None:
    """Return the expression that ``name`` stands for in ``place``, and at ``at`` behind it."""
    for block, inner in _blocks(place):
        for statement in reversed(block[: block.index(inner)]):
            value = _value(statement, name)
            if value is None:
                continue
            own = _only_within(value)  # what a comprehension goes through it by ends with it
            made = set(loaded(value)) - own
            # A name that the statement itself binds is another thing behind it.
            kept = not made & ({one for node in ast.walk(statement) for one in bound(node)} - own)
            sure = kept and unchanged(at, {name, *made}, end_of(statement))
            path = (*place.nodes[: place.nodes.index(inner)], statement, value)
            return Place(place.file, path) if sure and _text(value) else None
    return None


def _only_within(value: ast.expr) -> set[str]:
    """Return the names that comprehensions bind in an expression, and that it takes from nowhere else."""
    parts = [getattr(node, "generators", ()) for node in ast.walk(value)]
    own = {name for part in parts for one in part for node in ast.walk(one.target) for name in bound(node)}
    first = {name for part in parts for one in part[:1] for name in loaded(one.iter)}
    return own - first - {one.id for one in _outside(value) if isinstance(one, ast.Name)}


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of an expression without those of the comprehensions in it."""
    if not getattr(node, "generators", ()):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _outside(child)


def _handed_back(place: Place, name: str, at: Place) -> Place | None:
    """Return the expression that a function of the same file hands back as ``name`` before the expression."""
    for block, inner in _blocks(place):
        for statement in reversed(block[: block.index(inner)]):
            if name not in {one for node in ast.walk(statement) for one in bound(node)}:
                continue
            made = returned(place, statement, name) if unchanged(at, (name,), end_of(statement)) else None
            own = made.nodes[-1] if made is not None else None
            return _assigned(made, own.id, made) if made is not None and isinstance(own, ast.Name) else made
    return None


def _blocks(place: Place) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Yield each list of statements of the scope that the expression stands in, with its statement, inner first."""
    nodes = place.nodes[place.nodes.index(place.scope) :]
    for outer, inner in zip(reversed(nodes[:-1]), reversed(nodes[1:]), strict=True):
        for _, block in ast.iter_fields(outer):
            if isinstance(block, list) and isinstance(inner, ast.stmt) and inner in block:
                yield block, inner


def _of_call(callers: tuple[Frame, ...]) -> Iterator[str]:
    own = next((one for one in callers if one.kind == USER), None)  # behind what a library wraps around it
    place = None if own is None else place_of(own)
    statement = None if place is None else place.statement
    if place is not None and isinstance(statement, _SIMPLE) and isinstance(place.nodes[-1], ast.Call):
        yield _text(statement)


def _value(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        targets, values = _paired(statement.targets[0], statement.value)
        pairs = zip(targets, values, strict=True)
        return next((value for one, value in pairs if isinstance(one, ast.Name) and one.id == name), None)
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.value if statement.target.id == name else None
    return None


def _paired(target: ast.expr, value: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return the targets and values of ``a, b = x, y``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return target.elts, value.elts
    return [target], [value]


def _uses(place: Place, callers: tuple[Frame, ...]) -> Iterator[str]:
    """Yield the statements behind the expression's own that use the one name which it is assigned to.

    Of what a function returns at once it is the caller's statement.
    """
    statement = place.statement
    if isinstance(statement, ast.Return) and statement.value is place.nodes[-1]:
        yield from _of_call(callers)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    name = statement.targets[0].id
    for node in nodes_of(place.scope):
        behind = isinstance(node, _SIMPLE) and node.lineno > end_of(statement)[0]
        if behind and name in loaded(node) and (text := _text(node)):
            yield text

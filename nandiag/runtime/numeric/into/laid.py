"""Which memory numpy may have laid into what it made where it complained, by the text and the names there (worker).

A warning tells a place and not the array. Where memory of torch's holds something bad, the place made it only if what
it makes is written into that memory, and a metric that is only read or kept is not.
"""

from __future__ import annotations

import ast
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from nandiag.runtime.evidence.around.place import Place, imported, place_of, root
from nandiag.runtime.frames import USER, Frame, kind_of
from nandiag.runtime.numeric.ended import taken
from nandiag.runtime.numeric.fed import UNKNOWN, names_of, value_of
from nandiag.runtime.numeric.into.outs import FILL_FIRST, FILL_OWN, called, outs
from nandiag.runtime.numeric.into.ways import ways
from nandiag.runtime.numeric.lineage import Flow, flows_in, scope_of

_MOST_FRAMES = 8
_RETURNS = (ast.Return, ast.Lambda)


class Laid(NamedTuple):
    """The addresses that something was laid into; ``as_it_is``: with no arithmetic on the way.

    ``lost``: it is only not known where it went.
    """

    first: int
    end: int
    as_it_is: bool = False
    lost: bool = False

    @property
    def anywhere(self) -> bool:
        """Whether it is not known which memory it is."""
        return self.end == sys.maxsize

    def meets(self, first: int, end: int) -> bool:
        """Whether some of that memory is here."""
        return self.first < end and first < self.end


# Into whatever the text has no name for.
ANYWHERE = Laid(0, sys.maxsize)


class _Target(NamedTuple):
    node: ast.expr
    as_it_is: bool
    element: bool  # what an index gives is written over as memory: ``rows[0] /= n``
    away: bool = False  # what is no array there may be taken out of it, and written where nobody sees it
    lost: bool = False


def laid_into(frame: FrameType | None) -> Iterator[Laid]:
    """Yield what memory is written into with what an expression of the script's makes beneath ``frame``.

    Of a function that returns it, with what the line makes that called it.
    """
    found = False
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        if kind_of(frame.f_code.co_filename) == USER:
            targets, returned = _targets(frame.f_code, frame.f_lasti)
            names = ChainMap(names_of(frame), frame.f_globals)
            yield from (one for target in targets if (one := _memory(target, names)) is not None)
            found = True
            if not returned:
                return
        elif found and "numpy" not in frame.f_code.co_filename:
            return
        frame = frame.f_back


@lru_cache(maxsize=256)
def _targets(code: CodeType, instruction: int) -> tuple[tuple[_Target, ...], bool]:
    """Return what an expression's value is written into within its function, and whether the function returns it."""
    place = place_of(Frame(code, instruction))
    if place is None or place.statement is None:
        return (), False
    tree = place.nodes[0]
    flows = list(flows_in(scope_of(tree, place.statement.lineno), frozenset(imported(tree))))
    source = next((one for one in flows if one.node is place.statement), None)
    if source is None:
        return tuple(_written(place)), False
    held, elements, lost = ways(place, source, flows)
    takers = [one for one in flows if one is not source and held & taken(one.parts)]
    kept = [_Target(one, as_it_is=False, element=False, away=True, lost=True) for one in elements]
    anywhere = [_Target(ast.Constant(None), as_it_is=False, element=True, lost=True)] if lost else []
    written = (target for one in takers for target in _written_by(one, held))
    targets = (*_written(place), *written, *kept, *anywhere)
    return targets, any(isinstance(one, _RETURNS) for flow in (source, *takers) for one in _nodes(flow))


def _nodes(flow: Flow) -> Iterator[ast.AST]:
    for part in flow.parts:
        yield from ast.walk(part)


def _written(place: Place) -> Iterator[_Target]:
    """Yield what is written into with what the expression gives, by its own statement."""
    own = place.nodes[-1]
    for node in place.nodes:
        if isinstance(node, ast.AugAssign | ast.Assign):
            yield from _assigned(node, as_it_is=getattr(node, "value", None) is own)
        elif isinstance(node, ast.Call):
            within = node is own or any(one is place.nodes[place.nodes.index(node) + 1] for one in _given(node))
            yield from _filled(node, as_it_is=node is own or own in node.args) if within else ()


def _written_by(flow: Flow, held: set[str]) -> Iterator[_Target]:
    """Yield what a further statement writes into with what it takes of the names ``held``."""
    for node in _nodes(flow):
        if isinstance(node, ast.AugAssign | ast.Assign) and held & taken([node.value]):
            yield from _assigned(node, as_it_is=False)
        elif isinstance(node, ast.Call) and held & taken(_given(node)):
            yield from _filled(node, as_it_is=False)


def _assigned(node: ast.AugAssign | ast.Assign, *, as_it_is: bool) -> Iterator[_Target]:
    if isinstance(node, ast.AugAssign):
        yield _Target(node.target, as_it_is=False, element=True)
        return
    for target in node.targets:
        for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(one, ast.Subscript) or (isinstance(one, ast.Attribute) and one.attr == "flat"):
                yield _Target(one, as_it_is, element=False)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _filled(call: ast.Call, *, as_it_is: bool) -> Iterator[_Target]:
    name, own = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    for one in outs(call):
        for node in one.elts if isinstance(one, ast.Tuple) else [one]:
            yield _Target(node, as_it_is, element=True)
    if name in FILL_FIRST and len(call.args) > 1:
        yield _Target(call.args[0], as_it_is and name == "copyto", element=True)
    if name in FILL_OWN and own is not None and root(own) not in {"np", "numpy"}:
        yield _Target(own, as_it_is=False, element=True)


def _memory(target: _Target, names: Mapping[str, Any]) -> Laid | None:
    """Return the memory of a target; ``None`` where it is known to be none of an array's."""
    node = target.node
    value = value_of(node.value, names) if isinstance(node, ast.Subscript | ast.Attribute) else UNKNOWN
    if not _is_array(value) and (target.element or value is UNKNOWN):
        value = value_of(node, names)
    if value is UNKNOWN or (target.away and not _is_array(value)):
        return ANYWHERE._replace(as_it_is=target.as_it_is, lost=target.lost)
    if not _is_array(value) or target.away:
        return None  # of an element of an array its own statement tells more
    first, end = _bounds(value)
    return Laid(first, end, target.as_it_is)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _bounds(array: Any) -> tuple[int, int]:
    first = end = int(array.__array_interface__["data"][0])
    if not array.size:
        return first, first
    for length, stride in zip(array.shape, array.strides, strict=True):
        first, end = first + min(0, (length - 1) * stride), end + max(0, (length - 1) * stride)
    return first, end + int(array.itemsize)

"""What a draw was given that it refused for want of weight: a row of zeros, all of them finite (worker).

No value is bad, and so nothing is run again: the text of the script tells what the weights were made of, and the frames
of the error hold which of that is 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor

from nandiag.runtime.evidence.around import around
from nandiag.runtime.evidence.around.place import place_of, root
from nandiag.runtime.frames import USER, Frame, columns, source
from nandiag.runtime.look.finite import is_bad

_REFUSED = "sum of probabilities <= 0"
_EXPONENTIALS = frozenset({"exp", "exp2"})
_ALIKE = frozenset({"detach", "clone", "contiguous", "float", "double", "cpu", "to", "squeeze", "view", "reshape"})
_MOST_ROWS, _MOST_FRAMES = 4, 8


def nothing_to_draw(error: BaseException, given: Sequence[Tensor]) -> dict[str, object] | None:
    """Return what is known of the weights that a draw refused because they sum to 0; None where it was something else.

    ``given``: what the call was handed, as far as it was seen.
    """
    frames = list(frames_of(error)) if _REFUSED in str(error) else []
    if not frames:
        return None
    live, frame = frames[0]
    name = _drawn_of(frame)
    tensor = next((one for one in [*given, held(live, name)] if isinstance(one, Tensor) and _empty(one)), None)
    if tensor is None:
        return None
    facts: dict[str, object] = {**line_of(frame), **_rows(tensor)}
    return facts if name is None else {**facts, "name": name, **_made(frames, tensor, name)}


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, Frame]]:
    """Yield the script's own frames that ``error`` came through, from the innermost on."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame, Frame(trace.tb_frame.f_code, trace.tb_lasti)))
        trace = trace.tb_next
    yield from [one for one in reversed(found) if one[1].kind == USER][:_MOST_FRAMES]


def _drawn_of(frame: Frame) -> str | None:
    """Return the first argument of the call that the line makes, as its text has it."""
    place = place_of(frame)
    call = place.nodes[-1] if place is not None else None
    return ast.unparse(call.args[0]) if isinstance(call, ast.Call) and call.args else None


def held(live: FrameType, name: str | None) -> Any:
    """Return what a frame holds by a name, or by an attribute of one, as far as nothing is run to read it."""
    first, *rest = (name or "").split(".")
    found = live.f_locals.get(first, live.f_globals.get(first))
    for one in rest:
        own = getattr(found, "__dict__", {})
        found = own.get(one, (own.get("_buffers") or {}).get(one))
    return found


def _empty(tensor: Tensor) -> bool:
    plain = tensor.is_floating_point() and 0 < tensor.dim() <= 2 and tensor.numel() and not is_bad(tensor)
    return bool(plain) and bool((tensor.detach().sum(-1) <= 0).any())


def line_of(frame: Frame) -> dict[str, object]:
    """Return the file and line that a frame stands in, and its text."""
    place = columns(frame)
    line = frame.line if place is None else place[0]
    return {"at": [frame.file, line], "source": (source(frame, line) or "").strip()}


def _rows(tensor: Tensor) -> dict[str, object]:
    facts: dict[str, object] = {"negative": bool((tensor.detach() < 0).any()), "size": tensor.shape[-1]}
    if tensor.dim() == 1:
        return facts
    rows = _zero_rows(tensor)
    return {**facts, "rows": rows[:_MOST_ROWS].tolist(), "empty": len(rows), "of": len(tensor)}


def _zero_rows(tensor: Tensor) -> Tensor:
    return (tensor.detach().reshape(-1, tensor.shape[-1]).sum(-1) <= 0).nonzero().view(-1)


def _made(frames: list[tuple[FrameType, Frame]], tensor: Tensor, name: str) -> dict[str, object]:
    """Return what ``name`` stands for, and which of the names in that is 0 wherever the draw had nothing."""
    live, frame = frames[0]
    said = around(tuple(one for _, one in frames))
    known = [one for one in (() if said is None else said.names) if one.name == name and one.text]
    made = [(one.text, one.file, one.line) for one in known[:1]] or list(set_to(frame, name))
    if len(made) > 1:
        return {"set_in": [line for _, _, line in made]}
    text, file, line = made[0] if made else (name, frame.file, 0)
    facts: dict[str, object] = {"made": text, "made_at": [file, line]} if line else {}
    tree = ast.parse(text, mode="eval").body
    zero = _zero_factor(live, tensor, tree) if not known or known[0].inside else None
    if zero is not None:
        return {**facts, "zero": zero}
    return {**facts, "small": True} if is_exponential(tree) else facts


def set_to(frame: Frame, name: str) -> Iterator[tuple[str, str, int]]:
    """Yield what the function that ``frame`` runs assigns to ``name``, with its line; not what leaves the values."""
    place = place_of(frame)
    for node in () if place is None else ast.walk(place.scope):
        if isinstance(node, ast.Assign) and any(ast.unparse(one) == name for one in node.targets):
            same = isinstance(node.value, ast.Call) and root(node.value) == name and called(node.value) in _ALIKE
            if not same:
                yield ast.unparse(node.value), frame.file, node.lineno


def _zero_factor(live: FrameType, tensor: Tensor, tree: ast.expr) -> str | None:
    """Return the factor of a product that is 0 in all of the rows that are."""
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Mult):
        return None
    rows = _zero_rows(tensor)
    for node in (tree.left, tree.right):
        text = ast.unparse(node)
        factor = held(live, text)
        if isinstance(factor, Tensor) and _is_zero_in(factor, tensor, rows):
            return text
        inner = _zero_factor(live, tensor, node)
        if inner is not None:
            return inner
    return None


def _is_zero_in(factor: Tensor, tensor: Tensor, rows: Tensor) -> bool:
    try:
        whole = factor.detach().expand_as(tensor).reshape(-1, tensor.shape[-1])
    except RuntimeError:
        return False
    return bool((whole[rows] == 0).all())


def is_exponential(tree: ast.expr) -> bool:
    """Whether the value is an exponential itself: no such is 0 but for want of range, or of an exponent of -inf."""
    return isinstance(tree, ast.Call) and called(tree) in _EXPONENTIALS


def called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    named = call.func
    return named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""

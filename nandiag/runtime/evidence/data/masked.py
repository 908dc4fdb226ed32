"""Where the script laid what a mask stands for, and where NaN that is meant meets what has a gradient (worker)."""

from __future__ import annotations

import ast

from nandiag.events.forms import plain
from nandiag.runtime.evidence.around.place import loaded, place_of
from nandiag.runtime.evidence.around.unchanged import unchanged
from nandiag.runtime.evidence.data.missing import masks_nan, met
from nandiag.runtime.evidence.explain import frame_of, site_of
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.frames import source
from nandiag.runtime.guard import sparing


@sparing
def masked_at(op: Op) -> dict[str, object]:
    """Return where the script wrote what went into the op as a mask, or for what is missing, and that line's text."""
    missing: dict[str, object] = {"masked_nan": True, **_met_at(op)} if masks_nan(op) else {}
    waiting, seen = [op] if op.sums or op.empties or op.born_nan or missing else [], {id(op)}
    while waiting:
        one = waiting.pop()
        frame = frame_of(one.spot) if one.constant else None
        if frame is not None:
            text = (source(frame, frame.line) or "").strip()
            return {"masked_at": [frame.file, frame.line], "masked_text": text, **missing}
        waiting += [parent for parent in one.parents if id(parent) not in seen]
        seen.update(map(id, one.parents))
    return missing


def _met_at(product: Op) -> dict[str, object]:
    """Return where a number is to stand for the NaN, and for which of the two there, if the mask is known there.

    That is in the function of the product alone, where its mask has been the same since.
    """
    found = met(product)
    if found is None or not _is_known(product, found[0]):
        return {}
    return {"met": {"site": plain(site_of(found[0].spot, str(found[0].func))), "which": found[1]}}


def _is_known(product: Op, there: Op) -> bool:
    frame, earlier = frame_of(product.spot), frame_of(there.spot)
    if frame is None or earlier is None or frame.code is not earlier.code:
        return False
    place, before = place_of(frame), place_of(earlier)
    if place is None or before is None or place.statement is None or before.statement is None:
        return False
    if place.statement is before.statement:
        return True
    block = before.nodes[before.nodes.index(before.statement) - 1]
    node = place.nodes[-1]
    ahead = block in place.nodes and before.statement.lineno < place.statement.lineno
    if not ahead or not isinstance(node, ast.BinOp):
        return False
    # What is bad is not the mask.
    mask = node.right if product.inputs[0] is not None else node.left
    return unchanged(place, set(loaded(mask)), (before.statement.lineno, before.statement.col_offset))

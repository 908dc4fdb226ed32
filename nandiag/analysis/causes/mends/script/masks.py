"""Masks of -inf by the script's own text: where one is laid, and whether its True hides or keeps (reader side)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_ENDLESS = re.compile(r"""-\s*(?:\w+\.)*inf\b|["']-inf|-\s*float\(["']inf""", re.IGNORECASE)
_SHARE, _NEXT_TO_NOTHING = 0.9, 1e-12
_SEVERAL, _FEW = 4, 1e-6


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask by its name in the script; ``keeps`` is whether True leaves a position there."""

    name: str
    keeps: bool

    @property
    def opened(self) -> str:
        """The line that leaves all positions of a row of which the mask would leave none."""
        if self.keeps:
            return f"{self.name} = {self.name} | ~{self.name}.any(-1, keepdim=True)"
        return f"{self.name} = {self.name}.masked_fill({self.name}.all(-1, keepdim=True), False)"


def runs_over_blocks(maximum: str) -> bool:
    """Whether ``maximum`` is that of one so far and of a block's: ``torch.maximum(m, s.amax(-1))``."""
    node = parsing.expression(maximum)
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    two = [one for one in node.args if not isinstance(one, ast.Constant | ast.UnaryOp)]
    return name == "maximum" or (name == "max" and len(two) > 1)


# What becomes of a row of -inf alone by the lowest finite number in its place: of one maximum, and of one over blocks.
THEN = (
    "such a row is then a mean over all its positions.",
    "what such a block gives a row is scaled to 0 by the first block that has a score for it.",
)
BLOCKS = Suggestion(
    "Or take the blocks in an order in which the first leaves each row a score: its own block, under a causal mask."
)


def is_laid(facts: Facts) -> bool:
    """Whether -inf is written ahead of the underlined expression, in its line or into what its names stand for."""
    around = facts.around
    named, block = ((), ()) if around is None else (around.names, around.block)
    texts = (facts.origin.source or "", *(one.text for one in named), *(one.text for one in block))
    return any(_ENDLESS.search(text) for text in texts)


def left_out_of(shares: TensorFact) -> bool:
    """Whether the zeros of a softmax are far below its other shares, of which no row has one alone.

    Scores that are only small leave shares of all sizes down to the least that the dtype holds. Of several rows one
    would have all, to the last digit, were it the others' size alone that made them vanish.
    """
    if not shares.zeros or shares.absmin is None or shares.max is None or dtype_of(shares) == "float16":
        return False
    several = shares.numel >= _SEVERAL * (shares.shape[-1] if shares.shape else 1)
    if several and shares.max < 1.0 and shares.absmin > _FEW:
        return True
    return shares.max < _SHARE and shares.absmin > _NEXT_TO_NOTHING


def mask_in(text: str) -> Mask | None:
    """Return the one mask that ``text`` lays -inf by, or ``None`` where there is none, several, or no name for it."""
    found = [laid for node in fitting.nodes_of(text) if isinstance(node, ast.Call) and (laid := _laid(node))]
    return _named(found[0][0], keeps=found[0][1]) if len(found) == 1 else None


def _laid(call: ast.Call) -> tuple[ast.expr, bool] | None:
    """Return the condition of a call that writes -inf, and whether it keeps what is there."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in {"masked_fill", "masked_fill_"} and len(call.args) == 2:
        return (call.args[0], False) if _is_endless(call.args[1]) else None
    if method != "where" or len(call.args) not in {2, 3}:
        return None
    if _is_endless(call.args[-1]):
        return call.args[0], True
    return (call.args[0], False) if len(call.args) == 3 and _is_endless(call.args[1]) else None


def _is_endless(node: ast.expr) -> bool:
    return "inf" in ast.unparse(node).lower()


def _named(node: ast.expr, *, keeps: bool) -> Mask | None:
    """Return the mask behind what inverts it or adds a dimension before its last."""
    if isinstance(node, ast.Name | ast.Attribute):
        return Mask(ast.unparse(node), keeps)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return _named(node.operand, keeps=not keeps)
    if isinstance(node, ast.Subscript) and _adds_before(node.slice):
        return _named(node.value, keeps=keeps)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    given = [ast.unparse(one) for one in node.args]
    if node.func.attr == "logical_not" and not given:
        return _named(node.func.value, keeps=not keeps)
    return _named(node.func.value, keeps=keeps) if node.func.attr == "unsqueeze" and given in (["0"], ["1"]) else None


def _adds_before(index: ast.expr) -> bool:
    parts = [ast.unparse(one) for one in index.elts] if isinstance(index, ast.Tuple) else [ast.unparse(index)]
    return set(parts) <= {"None", ":"} and (parts[-1] == ":" or parts in (["None"], [":", "None"]))

"""Masks of -inf by the script's own text: where one is laid, and whether its True hides or keeps (reader side)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
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


def is_given_back(facts: Facts, largest: ast.expr) -> bool:
    """Whether the sum is given back what the maximum took off, ``exp(x - m).sum() * exp(m)``: it is one of many parts.

    In the line, or where it goes from there.
    """
    name = quotients.looked_at(largest)
    calls = [one for text in _onward(facts) for one in fitting.nodes_of(text) if isinstance(one, ast.Call)]
    given = [part for one in calls if (part := fitting.target(one, "exp")) is not None]
    return isinstance(name, ast.Name) and any(
        isinstance(one := quotients.looked_at(part), ast.Name) and one.id == name.id for part in given
    )


def _onward(facts: Facts) -> tuple[str, ...]:
    return (facts.origin.source or "", *facts.uses)


def of_parts(facts: Facts, largest: str, finite: str) -> tuple[Suggestion, ...]:
    """Say what to do about the maximum of one of many parts, which their sum is given back.

    Where the sum is one over all ranks, that of all of them is meant: a rank may have nothing of a row.
    """
    meaning = facts.meaning(largest)
    behind = "Before this line" if meaning is None else f"Behind line {meaning.line}, which takes the maximum"
    text = f"{behind}, put the lowest finite number for -inf in it: the sum of such a row is then 0."
    kept = Suggestion(text, f"{largest} = {finite}")
    if not any(_OVER_RANKS.search(one) for one in _onward(facts)):
        return (kept,)
    text = f"{behind}, take that of all ranks, as the sum is one over all of them: a rank may have nothing of a row."
    code = f"torch.distributed.all_reduce({largest}, op=torch.distributed.ReduceOp.MAX)"
    return Suggestion(text, code), Suggestion(f"Or {kept.text[0].lower()}{kept.text[1:]}", kept.code)


_OVER_RANKS = re.compile(r"all_?reduce", re.IGNORECASE)


def kept_sum(facts: Facts, rest: str) -> Suggestion:
    """Say to keep the sum of a softmax in blocks from 0 where it divides, by its name where the text has it.

    What is scaled like it, and holds no sum itself, is what it divides. ``rest``: whose sum it is.
    """
    made = parsing.statement((facts.origin.source or "").strip())
    targets = made.targets if isinstance(made, ast.Assign) else []
    scale = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None
    block = () if facts.around is None else facts.around.block
    pairs = [pair for one in block for pair in _assigned(parsing.statement(one.text))] if scale else []
    scaled = {name: value for name, value in pairs if {name, scale} <= _names(value)}
    sums = [name for name, value in scaled.items() if any(_sum(node) for node in ast.walk(value))]
    over = [name for name in scaled if name not in sums]
    if len(sums) != 1 or len(over) != 1:
        return Suggestion(f"And keep the sum {rest} away from zero, where it divides.")
    text = f"And keep {sums[0]}, the sum {rest}, away from zero where it divides."
    return Suggestion(text, f"{over[0]} / {sums[0]}.clamp_min(1e-6)")


def _assigned(statement: ast.stmt | None) -> list[tuple[str, ast.expr]]:
    """Return what names a statement assigns what to, of ``a, b = x, y`` each to its own."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    target, value = statement.targets[0], statement.value
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    pairs = zip(target.elts, value.elts, strict=True) if both else [(target, value)]  # type: ignore[attr-defined]
    return [(name.id, given) for name, given in pairs if isinstance(name, ast.Name)]


def _names(node: ast.expr) -> set[str | None]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _sum(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and fitting.target(node, "sum") is not None


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

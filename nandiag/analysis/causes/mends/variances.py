"""A variance taken as the mean of squares less the square of the mean, which loses its digits (reader side)."""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import bounding, fitting, meanings
from nandiag.analysis.report import Suggestion

GENERAL = "((x - x.mean()) ** 2).mean()"


def of_squares(facts: Facts, op: str) -> Suggestion | None:
    """Say how to take what goes into the underlined call of ``op``; ``None`` where it is no such difference."""
    found = fitting.parsed(facts.origin)
    given = None if found is None else fitting.target(found[1], op)
    made = None if given is None else meanings.behind(facts, _without_eps(given))
    node = None if made is None else _without_eps(made.node)
    if made is None or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not squared(node.right):
        return None
    if holds_constant(node.left):
        return None  # 1 - c ** 2 is no variance, whatever it is
    told = "The difference of two squares"
    if made.meaning is not None:
        where = "" if made.meaning.file == facts.origin.file else f" of {posixpath.basename(made.meaning.file)}"
        told = f"{made.meaning.name}, of line {made.meaning.line}{where}, is the difference of two squares, and"
    text = f"{told} loses its digits: if it is a variance, take the mean off before squaring."
    own = averaged_by(facts, node.left)
    if own is not None:
        return Suggestion(f"{text.removesuffix('.')}, over the same part that {own} averages.")
    code = _taken(facts, made, node) or for_one_number(facts)
    return Suggestion(text if code is not None else f"{text.removesuffix('.')}{part(facts)}.", code)


def for_one_number(facts: Facts) -> str | None:
    """Return the general form, where the variance is one number of one rank's: it is none of several, nor of all."""
    made = facts.origin.outputs or facts.origin.inputs
    return GENERAL if facts.world == 1 and all(one.numel == 1 for one in made) else None


def part(facts: Facts) -> str:
    """Say over which part the mean is to be taken, where it is one of several, or where ranks may add theirs."""
    ranks = "; where ranks add up theirs, add up the means first, and then the squares about that of all"
    return f", over the same dimensions as here{ranks if facts.world > 1 else ''}"


def averaged_by(facts: Facts, node: ast.expr) -> str | None:
    """Return the function by which squares are averaged, where it is none of torch's means: nobody knows over what."""
    call = meanings.behind(facts, node).node
    if not isinstance(call, ast.Call) or fitting.target(call, "mean") is not None:
        return None
    return ast.unparse(call.func) if any(squared(one) for one in call.args) else None


def in_two_passes(facts: Facts, node: ast.BinOp) -> str | None:
    """Return the variance by torch's own, for a difference whose text shows of what it is one, and over which part."""
    squares, mean = meanings.behind(facts, node.left), meanings.behind(facts, base(node.right))
    if not (squares.inside and mean.inside):
        return None
    of, over = fitting.target(squares.node, "mean"), fitting.target(mean.node, "mean")
    whole = None if of is None else base(of)
    if over is None or whole is of or whole is None or ast.dump(whole) != ast.dump(over):
        return None
    along = _rest(squares.node, of)
    if along != _rest(mean.node, over):
        return None
    return f"{fitting.bracketed(over)}.var({''.join(f'{one}, ' for one in along)}unbiased=False)"


def _taken(facts: Facts, made: meanings.Made, node: ast.BinOp) -> str | None:
    """Return the line that makes the variance so."""
    code = in_two_passes(facts, node) if made.inside else None
    if code is None:
        return None
    if made.meaning is not None:
        own = bounding.with_eps(made.node)
        return f"{made.meaning.name} = {code}{'' if own is None else f' + {ast.unparse(own[1])}'}"
    found = fitting.parsed(facts.origin)
    given = (
        None if found is None else next((one for one in ast.walk(found[1]) if ast.dump(one) == ast.dump(node)), None)
    )
    if found is None or not isinstance(given, ast.expr):
        return None
    first, last = given.col_offset, given.end_col_offset or 0
    return fitting.whole(facts.origin, found[0][:first] + code + found[0][last:])


def _rest(call: ast.expr, given: ast.expr | None) -> list[str]:
    words = (*call.args, *call.keywords) if isinstance(call, ast.Call) else ()
    return [ast.unparse(one) for one in words if one is not given]


def holds_constant(node: ast.expr) -> bool:
    """Whether a number is a term of the sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return holds_constant(node.left) or holds_constant(node.right)
    return isinstance(node, ast.Constant)


def _without_eps(node: ast.expr) -> ast.expr:
    parts = bounding.with_eps(node)
    return node if parts is None else parts[0]


def squared(off: ast.expr) -> bool:
    """Whether it is ``x ** 2``, ``x * x``, ``x.square()`` or ``x.pow(2)``."""
    return base(off) is not off


def base(off: ast.expr) -> ast.expr:
    """Return the x of a square, else ``off`` itself."""
    if isinstance(off, ast.BinOp) and isinstance(off.op, ast.Pow) and ast.unparse(off.right) in {"2", "2.0"}:
        return off.left
    if isinstance(off, ast.BinOp) and isinstance(off.op, ast.Mult) and ast.dump(off.left) == ast.dump(off.right):
        return off.left
    return fitting.target(off, "square") or (fitting.target(off, "pow") if isinstance(off, ast.Call) else None) or off

"""What a logarithm or a root is taken of, and other lines break by too, is bounded where it is made (reader side).

A bound in the one line would leave what another line divides by as it is: below zero, or next to it.
"""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import Statement, words

# Of use as what is divided by, beside numbers of usual size.
_LEAST = 1e-6
# Rounding leads no further below 0 than this much of the largest value.
_ROUNDED = 1e-5
_FAR, _OF_USE = -1e-4, "1e-3"


def where_made(facts: Facts, op: str, why: str, *, ahead: bool = False) -> Suggestion | None:
    """Return the statement behind the one that makes it; ``None`` where no other line behind that breaks by it.

    ``why`` is what is said first. With ``ahead`` one of these has to stand before the origin's own line.
    """
    found, around = fitting.parsed(facts.origin), facts.around
    part = None if found is None else fitting.target(found[1], op)
    if not isinstance(part, ast.Name) or around is None or facts.origin.line is None:
        return None
    own = facts.origin.line
    made = [one for one in around.block if one.line < own and _stores(one, part.id)]
    behind = [one for one in around.block if made and one.line > made[-1].line and one.line != own]
    others = [one.line for one in behind if _breaks(one, part)]
    if not others or (ahead and others[0] > own):
        return None
    bound, line = _bound(facts), made[-1].line
    text = f"{why} {part.id} would break {words.lines(others)} as well: keep it above zero where it is made, behind "
    code = f"{part.id} = {part.id}.clamp_min({bound})  # behind line {line}"
    return Suggestion(f"{text}line {line}.".lstrip(), code)


def where_written(facts: Facts, op: str) -> Suggestion | None:
    """Return the lines that write the attribute of which it is taken, where more than rounding led below zero."""
    found = fitting.parsed(facts.origin)
    part = None if found is None else fitting.target(found[1], op)
    name = ast.unparse(part) if isinstance(part, ast.Attribute) else ""
    lines, least = facts.written(name), facts.origin.inputs[0].min
    if not lines or least is None or not _is_far(facts):
        return None
    verb = "writes" if len(lines) == 1 else "write"
    far = f"{name} is as low as {words.number(least)}, by more than rounding makes"
    return Suggestion(f"{far}: find out why in {words.lines(lines)}, which {verb} it.")


def _is_far(facts: Facts) -> bool:
    """Whether more than rounding led below zero."""
    given = facts.origin.inputs[0]
    least = min(given.min or 0.0, 0.0)
    return least < _FAR and -least > _ROUNDED * (given.absmax or 0.0)


def _bound(facts: Facts) -> str:
    """Return the least that is no rounding: what is nearer to zero than the most negative value tells nothing.

    Where more than rounding led below zero, a quotient by next to nothing would be huge in many places.
    """
    if _is_far(facts):
        return _OF_USE
    given = facts.origin.inputs[0]
    least = min(given.min or 0.0, 0.0)
    rounded = -least if -least <= _ROUNDED * (given.absmax or 0.0) else 0.0
    return f"1e{math.ceil(math.log10(max(rounded, _LEAST)))}"


def _stores(statement: Statement, name: str) -> bool:
    """Whether the statement gives the name its value, alone or with others."""
    node = parsing.statement(statement.text)
    given = [one for target in node.targets for one in ast.walk(target)] if isinstance(node, ast.Assign) else []
    return any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store) for one in given)


def _breaks(statement: Statement, part: ast.Name) -> bool:
    """Whether the statement divides by it, or takes a logarithm or a root of it, without a bound."""
    if fitting.breakable(statement.text, part, poles=True):
        return True
    powers = [one for one in fitting.nodes_of(statement.text) if isinstance(one, ast.BinOp)]
    return any(
        isinstance(one.op, ast.Pow) and ast.dump(one.left) == ast.dump(part) and _is_below_one(one.right)
        for one in powers
    )


def _is_below_one(power: ast.expr) -> bool:
    """Whether it is a number below one: of a root, or one over a power."""
    negative = isinstance(power, ast.UnaryOp) and isinstance(power.op, ast.USub)
    constant = isinstance(power, ast.Constant) and isinstance(power.value, float) and 0 < power.value < 1
    return negative or constant

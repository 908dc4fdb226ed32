"""Whether what a line divides by is a count, as far as its name and the text of the script tell (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.counts import wholes
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing, quotients
from nandiag.events import TensorFact

_COUNTS = re.compile(
    r"(?:^|[\W_])(?:n|num|numel|counts?|len|lengths?|steps|samples|tokens|batches|seen)(?:$|[\W_])", re.IGNORECASE
)
_INDEX = re.compile(r"""\[[^\['"]*?\]""")  # what it is looked up by tells nothing of it; a key says its name
_EITHER = re.compile(r"(?:^|[\W_])(?:n|length)(?:$|[\W_])", re.IGNORECASE)  # a count, or a norm
_SUM = re.compile(r"\bsum\(|\bcount\w*\(|\blen\(|\bnumel\(")
_SIZES = re.compile(r"norm|sqrt|\bstd\b|\bvar\b|\babs\b|\bmean\b|\bexp\b")


def both(facts: Facts, text: str | None) -> bool:
    """Whether both sides are single whole numbers, more than 1 above, or the divisor a sum: one count by another."""
    meaning, given = facts.meaning(text or ""), facts.origin.inputs
    above = given[0].max if len(given) > 1 and given[0].numel == 1 else None
    if above is None or above != int(above) or wholes.are(facts, _summed(facts, text or "")) is False:
        return False
    return above > 1.0 if meaning is None else _SUM.search(meaning.text) is not None


def is_one(facts: Facts, divisor: TensorFact) -> bool:
    """Whether the divisor holds whole numbers, as far as it is known, and is called a count."""
    ends = (divisor.min, divisor.max)
    whole = all(end is not None and end >= 0 and end == int(end) for end in ends)
    below = quotients.below(facts.origin) or divisor.name or ""
    made, stepped = facts.kind(below), is_stepped(facts, below)
    infinite = any(fact.posinf or fact.neginf for fact in facts.origin.outputs)
    if not made and not divisor.max and "int" not in dtype_of(divisor) and not infinite:
        below = _EITHER.sub("", below)  # nothing says which: a small number does for 0/0 of both
    counted = stepped or is_called(below) or _is_counted(facts, divisor, made)
    if not whole or is_size(facts, below) or wholes.are(facts, _summed(facts, below)) is False:
        return False
    return counted or _is_of_mask(facts, divisor, below)


def is_stepped(facts: Facts, text: str) -> bool:
    """Whether it is what lines of the script count up by whole numbers, less or more something else, if anything."""
    node = parsing.expression(facts.kind(text) or text)
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Add):
        if not isinstance(node.right, ast.Name | ast.Attribute | ast.Constant):
            return False
        node = node.left
    name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    around = facts.around
    return bool(name) and around is not None and any(one.counts for one in around.written if one.name == name)


def _is_of_mask(facts: Facts, divisor: TensorFact, text: str) -> bool:
    """Whether the one number that divides is the sum of what is known to be 0 and 1: it counts.

    Of a gate, or of shares, that are called a mask it may be below 1 in each sound step.
    """
    inner = _summed(facts, text)
    if inner is None or facts.origin.inputs[-1].numel != 1:
        return False
    if wholes.are(facts, inner) is True:
        return True
    named = isinstance(inner, ast.Name | ast.Attribute) and _MASKS.search(ast.unparse(inner).rpartition(".")[2])
    return bool(named) and ("int" in dtype_of(divisor) or dtype_of(divisor) == "bool")


def _summed(facts: Facts, text: str) -> ast.expr | None:
    """Return the x of ``x.sum()``, or of a name for it."""
    node = _bare(parsing.expression(facts.kind(text) or text))
    return None if node is None else _bare(fitting.target(node, "sum"))


def _bare(node: ast.expr | None) -> ast.expr | None:
    """Return what is cast, or looked at, in whatever way: that changes no value."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS:
        node = node.func.value
    return node


_CASTS = meanings.VIEWS | {"float", "double", "half", "bfloat16", "int", "long", "to", "type_as", "detach", "clone"}


def _is_counted(facts: Facts, divisor: TensorFact, made: str) -> bool:
    """Whether whole numbers, more than 1 among them, were counted by torch, or a count is divided by them."""
    if divisor.max is None or divisor.max <= 1 or divisor.absmin is None or divisor.absmin != int(divisor.absmin):
        return False
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    above = ast.unparse(node.left) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else ""
    return _TALLIES.search(made) is not None or _ALL.search(above) is not None


_TALLIES = re.compile(r"\b(?:bincount|histc|count_nonzero|value_counts)\(")
_ALL = re.compile(r"\b(?:len|numel)\(|\.shape\[|\.size\(")


def is_size(facts: Facts, text: str) -> bool:
    """Whether a name stands for a norm, or another size: n may be one as well as a count."""
    return _SIZES.search(facts.kind(text)) is not None


def least(facts: Facts, usual: str) -> str:
    """Return the ``usual`` guard, or less for a norm of gradients: near a minimum that is small, and no less honest."""
    below = quotients.below(facts.origin) or ""
    text = facts.kind(below) or below
    return "1e-12" if usual == "1e-6" and "norm" in text and "grad" in text else usual


def masked(facts: Facts, text: str) -> str | None:
    """Return the x of a divisor ``x.sum()``, or of a name for it, that is called a mask or made by a comparison.

    None where it is known to be made of fractions.
    """
    found = _SUMMED.match(facts.kind(text) or text)
    name = None if found is None else found[1] or found[2]
    if name is None or wholes.are(facts, parsing.expression(name)) is False:
        return None
    return name if _MASKS.search(name.rpartition(".")[2]) or _COMPARED.search(facts.kind(name)) else None


_SUMMED = re.compile(r"([\w.]+)\.sum\(\)$|torch\.sum\(([\w.]+)\)$")
_MASKS = re.compile(r"(?:^|_)(?:keep|kept|masks?|valid|active|alive|used|present|selected)(?:$|_)", re.IGNORECASE)
_COMPARED = re.compile(r" (?:[<>]=?|==|!=) |isfinite\(|\.bool\(\)")


def is_called(text: str) -> bool:
    """Whether a divisor that is written so is called a count."""
    return _COUNTS.search(_INDEX.sub("", text)) is not None


def is_of_steps(facts: Facts, text: str) -> bool:
    """Whether what a schedule divides by, or raises to a power, is called a number of steps, or so is what it is of."""
    return any(
        is_called(one) or is_stepped(facts, one) or _STEPS.search(one) for one in (text, facts.kind(text)) if one
    )


_STEPS = re.compile(
    r"(?:^|[\W_])(?:[teik]|steps?|epochs?|iters?|iterations?|total|warm(?:up)?|period|cycle|horizon|max)(?:$|[\W_])",
    re.IGNORECASE,
)

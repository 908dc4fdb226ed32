"""The difference of log-probabilities of what was chosen, where a mask forbids that: -inf less -inf (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_PICKED = re.compile(r"\b(?:log_prob|gather|take_along_dim)\(")
_NODES = ("Gather", "Index", "TakeAlongDim")
_LARGEST = re.compile(r"\b(?:a?max|maximum|cummax|logcumsumexp|scatter_reduce|segment_reduce)\b")
_HELD = (ast.Name, ast.Attribute, ast.Subscript)


def is_picked(facts: Facts) -> bool:
    """Whether one side of a difference is known to be picked: by what made it, or by the text."""
    nodes = facts.extra.get("made_by")
    by_graph = isinstance(nodes, list) and any(str(one).startswith(_NODES) for one in nodes)
    return by_graph or any(_PICKED.search(text) for text in _texts(facts))


def is_of_maximum(facts: Facts) -> bool:
    """Whether a side of the difference is known to be a maximum, one so far or one of groups."""
    nodes = facts.extra.get("made_by")
    by_graph = isinstance(nodes, list) and any(str(one).startswith(("Max", "Amax")) for one in nodes)
    return by_graph or any(_LARGEST.search(text) for text in _texts(facts))


def _texts(facts: Facts) -> list[str]:
    """Return the underlined text, what its names stand for, and the statements that give them something."""
    found = fitting.parsed(facts.origin)
    names = set() if found is None else {one.id for one in ast.walk(found[1]) if isinstance(one, ast.Name)}
    block = () if facts.around is None else facts.around.block
    given = [one.text for one in block if one.text.partition(" = ")[0] in names]
    return [*([] if found is None else [found[0]]), *given, *(facts.kind(name) for name in sorted(names))]


def said(facts: Facts) -> str:
    """Say where both sides are -inf: at the place of the first NaN, where nothing else of the result is infinite."""
    made = facts.origin.outputs[0]
    alone = not (made.posinf or made.neginf) and made.first_bad is not None
    where = f"at [{', '.join(map(str, made.first_bad or ()))}]" if alone else f"in {words.count(made.nan, 'value')}"
    return f"both are -inf {where}: what was chosen there has probability 0; -inf less -inf is NaN"


def advice(facts: Facts) -> tuple[Suggestion, ...]:
    """Say to leave such samples out, and to look at how they were chosen: neither changes the others."""
    look = "Or look at how it was chosen: with the same mask, with another one, or with none?"
    text = "Leave such samples out: the difference is then 0 there, a constant that no gradient comes of."
    return Suggestion(text, _left_out(facts)), Suggestion(look)


def _left_out(facts: Facts) -> str | None:
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.BinOp) or fitting.assigned(found):
        return None
    held = next((one for one in (found[1].right, found[1].left) if isinstance(one, _HELD)), None)
    filled = None if held is None else f"({found[0]}).masked_fill({ast.unparse(held)}.isinf(), 0.0)"
    return None if filled is None else fitting.whole(facts.origin, filled)

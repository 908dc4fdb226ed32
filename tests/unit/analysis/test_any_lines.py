"""Whatever line an op stands in, by whatever expression of it: the causes and their mends raise nothing."""

import ast
import functools
from dataclasses import replace
from pathlib import Path

import pytest

from nandiag.analysis.causes import BUG, Facts, explain
from nandiag.events import Around, Meaning, Site

EACH = 20
ROOT = Path(__file__).resolve().parents[3]
OPS = {
    "div": ({}, {"zeros": 1, "min": 0.0, "absmin": 0.5}, {"nan": 1}),
    "reciprocal": ({"zeros": 1, "min": 0.0}, None, {"posinf": 1}),
    "log": ({"zeros": 1, "min": 0.0}, None, {"neginf": 1}),
    "sqrt": ({"min": -1.0}, None, {"nan": 1}),
    "exp": ({"max": 200.0, "min": -3.0, "absmax": 200.0}, None, {"posinf": 1}),
    "pow": ({"zeros": 1, "min": 0.0}, None, {"posinf": 1}),
    "mul": ({"max": 3e38}, {"max": 3e38}, {"posinf": 1}),
    "sub": ({"max": 3e38}, {"max": 3e38}, {"posinf": 1}),
    "mean": ({"shape": (0,)}, None, {"nan": 1, "shape": ()}),
    "std": ({"shape": (1,)}, None, {"nan": 1, "shape": ()}),
    "_softmax": ({"neginf": 16}, None, {"nan": 16}),
    "acos": ({"max": 1.5, "min": -2.0}, None, {"nan": 1}),
}


def in_samples():
    """Yield each statement on a line of its own of the samples, with each expression of it that may be an op's."""
    for file in sorted((ROOT / "sample_models").rglob("*.py")):
        lines = file.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.BinOp | ast.Call | ast.AugAssign) and node.lineno == node.end_lineno:
                yield lines[node.lineno - 1], (node.col_offset, node.end_col_offset)


@functools.cache
def every_place():
    """Return all of these; to parse the samples takes longer than to explain what stands in a few hundred lines."""
    return tuple(in_samples())


def places(op, node):
    """Return every so many of these, others for each op."""
    turn = list(OPS).index(op) + (0 if node is None else len(OPS))
    return every_place()[turn % EACH :: EACH]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("node", [None, "DivBackward0"])
def test_no_line_makes_a_cause_raise(at, by_hand, op, node):
    given = [by_hand.fact(**kind) for kind in OPS[op][:2] if kind is not None]
    facts = at(
        op,
        given,
        (by_hand.fact(**OPS[op][2]),),
        extra={"of_weights": True, "arg1": -2.0},
        phase="loss",
        file="train.py",
    )
    seen = [in_line(facts, *place, node) for place in places(op, node)]
    assert len(seen) > 300
    told = [text for one in seen for cause in explain(one) if cause is not None for text in cause.evidence]
    assert told
    assert not [text for text in told if BUG in text]


def in_line(facts: Facts, line, column, node):
    around = Around((Meaning("x", line.strip(), "train.py", 3),), (line.strip(),), block=())
    origin = replace(facts.origin, source=line, column=column, node=node)
    return replace(facts, origin=origin, look=replace(facts.look, site=Site(around=around)))

"""The facts on a line of the script, and the advice on it: what the tests of mends say in one line."""

from dataclasses import replace

from nandiag.analysis.causes import explain
from nandiag.events import Around, Meaning, Site, Written


def on(facts, *names, uses=(), written=(), ends=None):
    meanings = tuple(Meaning(name, text, "train.py", 3) for name, text in names)
    around = Around(meanings, tuple(uses), written=tuple(Written(name, lines) for name, lines in written), ends=ends)
    return replace(facts, look=replace(facts.look, site=Site(around=around)))


def placed(line, expression):
    first = line.index(expression)
    return {"text": line, "column": (first, first + len(expression)), "file": "train.py", "phase": "loss"}


def quotient(at, by_hand, line, expression, kind, **extra):
    given = (by_hand.fact(), by_hand.fact(zeros=1, min=0.0, absmin=0.5))
    op = "reciprocal" if expression.startswith("1 /") else "div"
    given = given[1:] if op == "reciprocal" else given
    extra = {"of_weights": True, **extra}
    return at(op, given, (by_hand.fact(**{kind: 1}),), **placed(line, expression), extra=extra)


def advice(facts):
    return explain(facts)[1].suggestions


def logarithm(at, by_hand, inside, *names):
    line = f"loss = -torch.log({inside}).mean()"
    facts = at("log", (by_hand.fact(zeros=3),), (by_hand.fact(neginf=3),), **placed(line, f"torch.log({inside})"))
    return advice(on(facts, *names))[0].code.removeprefix("loss = -").removesuffix(".mean()")

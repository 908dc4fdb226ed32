"""What is said of an op from the facts on it alone: its cause, and the code that is advised."""

from nandiag.analysis.causes import explain

LINE = {"file": "train.py", "line": 7}


def on(source, expression):
    first = source.index(expression)
    return {**LINE, "text": source, "column": (first, first + len(expression))}


def mechanism(facts):
    return explain(facts)[1]


def codes(facts):
    return [one.code for one in mechanism(facts).suggestions]


def by_zero(at, by_hand, line, expression, *, op="div", nan=0, zero=None, **more):
    zero = zero or by_hand.fact(zeros=1, shape=(), min=0.0, max=0.0)
    given = (zero,) if op == "reciprocal" else (by_hand.fact(), zero)
    bad = by_hand.fact(nan=1) if nan else by_hand.fact(posinf=1)
    return at(op, given, (bad,), **on(line, expression), **more)

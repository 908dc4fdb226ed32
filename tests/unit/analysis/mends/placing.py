"""A line of the script with its underlined expression, and the first line that is told to mend it."""

from nandiag.analysis.causes import explain


def on(source, expression):
    first = source.index(expression)
    return {"text": source, "column": (first, first + len(expression)), "file": "train.py", "line": 7}


def first(facts):
    return explain(facts)[1].suggestions[0].code

"""Counts in integers of few bits, of which a 0 may be the one that did not fit: 256 is 0 in uint8 (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.script import quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning, TensorFact

_WRAPS = {"uint8": "256 is 0", "int8": "128 is -128 and 256 is 0", "int16": "32,768 is -32,768 and 65,536 is 0"}
_AS_DTYPE = re.compile(r"\b(np|numpy|torch)\.(?:uint8|int8|int16|short)\b")
_AS_TEXT = re.compile(r"""(["'])(?:uint8|int8|int16)\1""")
_BY_METHOD = re.compile(r"\.(?:byte|char|short)\(\)")


def wrapped(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """Say that whole numbers of few bits that are divided by may have wrapped round: a bound would hide it."""
    dtype = dtype_of(divisor)
    if dtype not in _WRAPS or not _may_be_wrapped(divisor):
        return ()
    of = quotients.below(facts.origin) or "The divisor"
    text = f"{of} is {dtype}, in which {_WRAPS[dtype]}: counts as large have wrapped, and a bound would hide that. "
    made = _made(facts, of)
    if made is None:
        return (Suggestion(f"{text}If it counts, make it in int64."),)
    return (Suggestion(f"{text}Make it in int64, in line {made.line}.", f"{made.name} = {_widened(made.text)}"),)


def _may_be_wrapped(divisor: TensorFact) -> bool:
    return divisor.zeros > 0 or (divisor.min is not None and divisor.min < 0)


def _made(facts: Facts, divisor: str) -> Meaning | None:
    """Return the name that goes into the divisor and whose text makes it narrow."""
    names = facts.around.names if facts.around is not None else ()
    own = [one for one in names if one.inside and re.search(rf"\b{re.escape(one.name)}\b", divisor)]
    return next((one for one in own if _widened(one.text) != one.text), None)


def _widened(text: str) -> str:
    return _BY_METHOD.sub(".long()", _AS_TEXT.sub(r"\1int64\1", _AS_DTYPE.sub(r"\1.int64", text)))

"""A divisor that another rank has sent: where it is 0 all over, it was so there (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

_AGAIN = "Look at what filled it there before, and at whether that rank is the one to send it."


def told(facts: Facts) -> tuple[str, ...]:
    """Return which rank has sent the divisor, and by which call; nothing where none is known to have."""
    came = _came(facts)
    return () if came is None else (f"{_name(facts)} came from {came}",)


def first(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """Say to look at the rank that has sent it, where all of it is 0: nothing in the place of these is of use."""
    came = _came(facts) if divisor.zeros == divisor.numel else None
    return () if came is None else (Suggestion(f"All of {_name(facts)} is 0 as it came from {came}. {_AGAIN}"),)


def _name(facts: Facts) -> str:
    below = quotients.below(facts.origin)
    return below if below is not None and below.replace(".", "").isidentifier() else "the divisor"


def _came(facts: Facts) -> str | None:
    arrived = facts.extra.get("arrived")
    place = 1 if len(facts.origin.inputs) > 1 else 0  # 1 / x has the divisor alone
    one = next((one for one in arrived if one[0] == place), None) if isinstance(arrived, list) else None
    if one is None:
        return None
    _, op, rank, file, line = one
    own = file == facts.origin.file
    at = "" if line is None else f" in line {line}" if own else f" at {str(file).rpartition('/')[2]}:{line}"
    return f"rank {rank}, by the {op}{at}"

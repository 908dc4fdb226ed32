"""State of an optimizer that was loaded bad: by which line, and whether it was in half precision (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import HALF, LARGEST, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import words

# So near to the end of float16 do finite values come that went through it, where others are beyond.
_NEAR_END = 0.9


def seen(facts: Facts) -> str | None:
    """Return by which line the optimizer's state came that was bad when it was looked at next."""
    at = None if facts.harm is None else facts.harm.loaded_at
    if at is None:
        return None
    began = f"was bad when step {facts.origin.step} began"
    return f"The optimizer's state was loaded at {at}, and {began}."


def of_half(facts: Facts) -> tuple[str, ...]:
    """Say that what is finite ends where float16 does, if it does: what was beyond that became infinite in a copy."""
    ends = [fact.absmax for fact in facts.origin.inputs if (fact.posinf or fact.neginf) and not fact.nan]
    most = max((one for one in ends if one is not None), default=0.0)
    wide = all(dtype_of(fact) not in HALF for fact in facts.origin.inputs)
    if not wide or not _NEAR_END * LARGEST["float16"] <= most <= LARGEST["float16"]:
        return ()
    told = f"What is finite there goes to {words.number(most)}, and float16 ends at 65504: it went through a copy in "
    return (f"{told}half precision, most likely, which made infinities of all that is larger.",)


def look(facts: Facts, *, half: bool) -> Suggestion | None:
    """Say to look at what the line loads; ``half``: what it went through made it so."""
    at = None if facts.harm is None else facts.harm.loaded_at
    if at is None:
        return None
    how = "save it in float32 or bfloat16" if half else "how it was saved, and what was made of it on the way"
    text = f"Look at what {at} loads: {how}, and check it before it is used."
    return Suggestion(text[0].upper() + text[1:], facts.checked_state())

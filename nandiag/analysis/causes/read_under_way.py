"""A tensor that was read while an asynchronous collective on it was not waited for (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.report import Suggestion

_WAIT = Suggestion("Wait for the collective before what it writes is read.", "work.wait()")

_MESSAGE = "Wait for what {} returns before what it fills is used: a message that is under way yet has filled nothing."


def explain(facts: Facts) -> Cause | None:
    """Say which line read too early, where the step is finite when it is run again on what was there in the end."""
    known = facts.look.facts if facts.look is not None else {}
    name, at = known.get("under_way"), known.get("under_way_at")
    if not isinstance(name, str) or facts.look is None or facts.look.outcome not in {"finite", "found"}:
        return None
    line = at[1] if isinstance(at, list) and len(at) == 2 else None
    begun = f"the {name} of line {line}" if line is not None else f"an {name}"
    if known.get("unwaited") is True:
        text = f"this line uses what {begun} fills before wait() of it: what lies there need not be what was sent"
        return Cause("unknown", (text,), (Suggestion(_MESSAGE.format(begun), _WAIT.code),), LIKELY)
    text = (
        f"this line reads what {begun} writes, which was not waited for by then: what it gets hangs on the other ranks"
    )
    return Cause("unknown", (text,), (_WAIT,), LIKELY)

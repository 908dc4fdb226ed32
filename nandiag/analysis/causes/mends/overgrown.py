"""A weight that had run away before it left the range of its dtype, and the line that writes into it (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words


def of_a_weight(facts: Facts, name: str, text: str, strength: int) -> Cause:
    """Name the weight that had run away before, and the line that writes into it where the script does so itself."""
    size = words.number(facts.number("overgrown_absmax"))
    told = f"{name} itself goes to {size}, and did so before this step's batch came."
    at, by = facts.extra.get("overgrown_at"), facts.extra.get("overgrown_by")
    if not isinstance(at, list) or not isinstance(by, str) or not by:
        look = Suggestion(f"Look at what writes into {name}, and at its size from step to step.")
        return Cause("overflow", (text, told), (look,), strength, general=True)
    place = words.place(at)
    average = None if facts.extra.get("overgrown_trained") else _average(by)
    means = "an average must be of parts that add up to 1, each of them 0 or more." if average else "keep it bounded."
    mend = Suggestion(f"{place} writes into {name}: {means}", average)
    return Cause("overflow", (text, told, f"The script last wrote into it at {place}: {by}"), (mend,), strength)


def _average(by: str) -> str | None:
    """Return the average of two in the script's own names where the line moves one of them by the other."""
    found = _MOVES.fullmatch(by)
    names = [] if found is None else [one for one in _NAMES.findall(found[2]) if one != found[1]]
    return f"{found[1]}.lerp_({names[0]}, 1 - momentum)" if found is not None and names else None


_MOVES = re.compile(r"(\w+(?:\.\w+)*)\.(?:add_|lerp_|sub_)\(([^()]*)\)")
_NAMES = re.compile(r"(?<![\w.=])[A-Za-z_]\w*(?:\.\w+)*(?![\w(=.])")

"""A mean of squares of an optimizer's that is below zero: no update makes it so (reader).

A state that was loaded does: Adam's two moments in each other's place are the usual way, for the first one may have any
sign. So does the script that writes into the state by hand between two updates.
"""

from __future__ import annotations

import ast

from nandiag.analysis.causes.division_by_zero import is_called
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_ROOTS = frozenset({"sqrt", "rsqrt"})
# By what names optimizers keep it, but for those with "sq" in them.
_SQUARES = frozenset({"sum", "v", "nu", "second_moment", "var"})
_LOOK = (
    "Look at how the optimizer's state was loaded or converted: moments in each other's place, or interpolated beyond "
    "their ends. Check it right after it was loaded."
)
_BETWEEN = "Look at what writes into the optimizer's state between two updates: this is to stay at or above 0."
_NEVER = "A mean of squares is never negative, and no update makes it so:"
_SINCE = "it was written since the update before."
_LOADED = "it was written, or loaded, as it is."
_OF_ADAM = "assert all((state['exp_avg_sq'] >= 0).all() for state in {}.state.values())"


def explain(facts: Facts) -> Cause | None:
    """Name a state that was loaded so where an optimizer of a library takes the root of what is negative."""
    op, given = (facts.op or "").rstrip("_"), facts.origin.inputs
    if not facts.in_update or op not in _ROOTS or not is_called(facts) or not given:
        return None
    lowest = given[0].min
    if lowest is None or lowest >= 0:
        return None
    named = facts.extra.get("parameters")
    of = f" of {words.few([str(name) for name in named], most=2)}" if isinstance(named, list) and named else ""
    told = f"what should be a mean of squares{of} goes down to {words.number(lowest)}"
    settings = facts.extra.get("settings")
    of_adam = _OF_ADAM.format(facts.called("optimizer"))
    check = Suggestion(_LOOK, of_adam if isinstance(settings, dict) and "betas" in settings else None)
    written, read = _written(facts), facts.read_from("exp_avg_sq") or facts.read_from()
    if written is not None:
        return Cause("domain_error", (told, written[0]), (written[1],), LIKELY, story=True, leads=True)
    if read is None and facts.extra.get("updated_before") is True:
        between = (Suggestion(_BETWEEN, check.code),)
        return Cause("domain_error", (told, f"{_NEVER} {_SINCE}"), between, LIKELY, story=True, leads=True)
    came = () if read is None else (f"This state was {read}.",)
    return Cause(
        "checkpoint_corruption", (told, f"{_NEVER} {_LOADED}", *came), (check,), LIKELY, story=True, leads=True
    )


def _written(facts: Facts) -> tuple[str, Suggestion] | None:
    """Return what is told of the script's own write into the mean since the last update, and how to mend it."""
    known = facts.extra.get("state_written")
    named = known if isinstance(known, dict) else {}
    key = next((one for one in named if "sq" in one or one in _SQUARES), "")
    place = named.get(key)
    if not isinstance(place, list) or len(place) != len(("file", "line", "source")) or place[1] is None:
        return None
    file, line, source = words.file_name(place[0]), place[1], str(place[2])
    why = f"{_NEVER} line {line} of {file} wrote {key} behind the update before: {source}"
    code = f"{source}.clamp_(min=0)" if _is_write(source) else None
    return why, Suggestion(
        f"Keep {key} from going below 0 in line {line} of {file}, or leave it to the optimizer.", code
    )


def _is_write(source: str) -> bool:
    """Whether the line is no more than a call that writes in place, and gives back what it wrote."""
    try:
        parsed = ast.parse(source, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Attribute) and parsed.func.attr.endswith("_")

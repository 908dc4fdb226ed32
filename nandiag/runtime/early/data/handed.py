"""What the script hands in where it calls a root module, as its text has it (worker)."""

from __future__ import annotations

import ast
import re

from nandiag.runtime.tape.entry import Entry

_LONGEST = 120
_WITHIN = re.compile(r"\[('\w+'|\"\w+\")\]")


def handed_in(entry: Entry, place: int | str) -> dict[str, object]:
    """Return the expression ``given`` at ``place`` of a taped call, and the ``call``, as they stand in the text."""
    # Only read where a batch is unusual: what reads text is not loaded before.
    from nandiag.runtime.evidence.around.place import place_of

    frame = next(iter(entry.frames), None)
    at = None if frame is None else place_of(frame)
    call = None if at is None else at.nodes[-1]
    if not isinstance(call, ast.Call):
        return {}
    given, text = _given(call, str(place)), ast.unparse(call)
    return {"given": given, "call": text} if given is not None and len(text) <= _LONGEST else {}


def _given(call: ast.Call, place: str) -> str | None:
    head, bracket, rest = place.partition("[")
    value = _value(call, head)
    if value is None:
        return None
    text, within = ast.unparse(value[0]), f"{value[1]}{bracket}{rest}"
    if not within:
        return text
    plain = isinstance(value[0], ast.Name) and _WITHIN.fullmatch(within)
    return f"{text}{within}" if plain else None


def _value(call: ast.Call, head: str) -> tuple[ast.expr, str] | None:
    """Return what is handed in there, and the key in it, where it is a dict whose items are."""
    if head.isdigit():
        plain = not any(isinstance(one, ast.Starred) for one in call.args)
        return (call.args[int(head)], "") if plain and int(head) < len(call.args) else None
    named = next((one.value for one in call.keywords if one.arg == head), None)
    if named is not None:
        return named, ""
    dicts = [one.value for one in call.keywords if one.arg is None]
    return (dicts[0], f"[{head!r}]") if len(dicts) == 1 else None

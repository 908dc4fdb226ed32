"""What a draw that had nothing to draw from says: weights that sum to 0, and how to mend them (launcher and reader)."""

from __future__ import annotations

import posixpath

from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

SLUG = "nothing_to_draw"


def told(warned: Warned) -> str:
    """Return what was refused, at which line, what it was made of and why that is 0, as far as it is known."""
    facts = warned.facts
    name = _text(warned, "name") or "what it draws by"
    said = f"{name} sums to 0{_rows(warned)}{where(facts.get('at'), 'drawn from at')}"
    made = _text(warned, "made")
    if made is not None:
        said += f"; {name} is {made}{where(facts.get('made_at'), 'set at')}"
    lines = facts.get("set_in")
    if isinstance(lines, list) and lines:
        said += f"; {name} is set in {words.lines(lines)}"
    if _text(warned, "zero") is not None:
        return f"{said}, and {facts['zero']} is 0 there"
    if facts.get("small") is True:
        return f"{said}: each exponential is so small that it is 0"
    return f"{said}; it holds numbers below 0" if facts.get("negative") is True else said


def mends(warned: Warned) -> tuple[Suggestion, ...]:
    """Return what to change, in the script's own names."""
    name, zero = _text(warned, "name"), _text(warned, "zero")
    plain = name if name is not None and name.replace("_", "").replace(".", "").isalnum() else None
    found = []
    if warned.facts.get("small") is True:
        text = "Draw by the exponents: Categorical takes the largest away before it takes exponentials."
        made = _text(warned, "made") or ""
        exponents = made.partition("(")[2][:-1] if made.startswith(("torch.exp(", "exp(")) else None
        code = f"torch.distributions.Categorical(logits={exponents}).sample()" if exponents else None
        found.append(Suggestion(text, code))
    elif zero is not None:
        found.append(
            Suggestion(f"Look at what makes {zero}: a row of it allows nothing, and there is nothing to draw.")
        )
    if plain is not None:
        text = f"{'Or keep' if found else 'Keep'} all of them above 0: where none has any weight, any is drawn."
        code = f"{plain} = {plain}.clamp_min(1e-8)"
        if zero is not None:  # nothing that is not allowed is to be drawn where something is
            text = "Where such a row may come, say what is drawn there: any number alike, here."
            code = f"{plain} = torch.where({plain}.sum(-1, keepdim=True) > 0, {plain}, torch.ones_like({plain}))"
        found.append(Suggestion(text, code))
    return tuple(found)


def _rows(warned: Warned) -> str:
    rows, of, empty = (warned.facts.get(key) for key in ("rows", "of", "empty"))
    if not isinstance(rows, list) or not rows or not isinstance(of, int) or not isinstance(empty, int):
        return ""
    if empty == of:
        return " in each of its rows" if of > 1 else ""
    return f" in row {rows[0]} of {of}" if empty == 1 else f" in {empty} of its {of} rows, the first is row {rows[0]}"


def where(place: object, what: str) -> str:
    """Return `` (WHAT file:line)`` of a file and a line, nothing where they are not known."""
    known = isinstance(place, list) and len(place) == 2
    return f" ({what} {posixpath.basename(str(place[0]))}:{place[1]})" if known and isinstance(place, list) else ""


def _text(warned: Warned, key: str) -> str | None:
    value = warned.facts.get(key)
    return value if isinstance(value, str) and value else None

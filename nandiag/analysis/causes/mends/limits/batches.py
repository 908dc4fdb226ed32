"""How the script is to clip a batch: what has a name by that, what has none where it is handed in (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.report import Suggestion
from nandiag.events import Warned

# What can be assigned to: a name, or an item of a dict.
_TARGET = re.compile(r"[A-Za-z_]\w*(\[['\"]\w+['\"]\])?")
_WITHIN = re.compile(r"[\[(].*[\])]")
_NAMED = (
    "Or clip all of the batch, in a line of its own between the one that hands it out and the call of the model, to "
    "twice what those before held."
)
_HANDED_IN = "Or clip all of the batch where the model is called, to twice what those before held."


def given(warned: Warned) -> str | None:
    """Return what the script hands in, as it stands in its call of the model, where that is known."""
    known = warned.facts.get("given")
    return known if isinstance(known, str) else None


def name_of(warned: Warned) -> str:
    """Return what the script calls it: a container of torch's calls what it is given input, and the script does not."""
    known, own = given(warned), warned.name
    if known is not None and _TARGET.fullmatch(known):
        return known
    return own if own is not None and own.isidentifier() and own != "input" else "x"


def clip(bounds: dict[str, str], call: str) -> Suggestion | None:
    """Suggest to clip each expression to its bound, either way; ``call`` is the script's own call of the model."""
    lines = []
    for text, most in bounds.items():
        clamped = f"{_grouped(text)}.clamp(-{most}, {most})"
        if _TARGET.fullmatch(text):
            lines.append(f"{text} = {clamped}")
        elif call.count(text) == 1:
            call = call.replace(text, clamped)
        else:
            lines.append(clamped)
    lines += [call] if any(f".clamp(-{most}, " in call for most in bounds.values()) else []
    named = all(map(_TARGET.fullmatch, bounds))
    return Suggestion(_NAMED if named else _HANDED_IN, "\n".join(lines)) if lines else None


def _grouped(text: str) -> str:
    return text if _WITHIN.sub("", text).replace(".", "").isidentifier() else f"({text})"

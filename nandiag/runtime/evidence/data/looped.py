"""What a model was given that the loop had made, in the same step, of what the same model returned before (worker).

A sampler's chain, or a rollout, is no batch: where it runs away the data is not to blame.
"""

from __future__ import annotations

from torch import Tensor

from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.tape.entries import ROOT, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Made

# Calls that give the same values on.
_SAME = frozenset({
    "detach", "requires_grad_", "clone", "contiguous", "to", "view", "reshape", "float", "flatten", "squeeze",
    "unsqueeze", "detach_",
})  # fmt: skip


def looped(entries: list[Entry], outputs: dict[int, list[Tensor]]) -> dict[str, object]:
    """Return where the loop made what the first call of a model that returned bad values was given, of earlier ones."""
    roots = [entry for entry in entries if entry.kind is ROOT]
    broke = next((one for one in roots if any(map(is_bad, outputs.get(id(one), ())))), None)
    if broke is None:
        return {}
    made = [word.entry for word in broke.words if type(word) is Made]
    one = next((one for one in made if _is_of(one, broke)), None)
    while one is not None and one.name in _SAME:
        one = next(one.makers, None)
    if one is None or one.kind is ROOT:
        return {}
    site = site_of(Spot(None, None, one.frames, "forward", one.micro_step), one.name)
    return {"looped_at": [site.file, site.line]}


def _is_of(made: Entry, call: Entry) -> bool:
    return any(one.kind is ROOT and one.function is call.function for one in ancestors([made]))

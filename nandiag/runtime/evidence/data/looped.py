"""What a model was given: how large it was, and whether the loop had made it of what the model returned (worker).

A sampler's chain, or a rollout, is no batch: where it runs away the data is not to blame. Pixels that go to 255 are.
"""

from __future__ import annotations

from torch import Tensor

from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.guard import sparing
from nandiag.runtime.look.finite import fact, is_bad
from nandiag.runtime.tape.entry import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Made

# What is normalised goes no further, as a rule.
_LARGE = 20.0
# Calls that give the same values on.
_SAME = frozenset({
    "detach", "requires_grad_", "clone", "contiguous", "to", "view", "reshape", "float", "flatten", "squeeze",
    "unsqueeze", "detach_",
})  # fmt: skip


@sparing
def of_given(entries: list[Entry], outputs: dict[int, list[Tensor]]) -> dict[str, object]:
    """Return what is to be told of what models were given in the step, and how the script got its gradients."""
    return {**looped(entries, outputs), **_size(entries), **_asked(entries)}


def _asked(entries: list[Entry]) -> dict[str, object]:
    """Return that ``torch.autograd.grad`` alone made the gradients: no ``.grad`` holds them."""
    asked = any(one.name == "grad" and str(one.function.__module__) == "torch.autograd" for one in entries)
    return {"gradients_asked": True} if asked and not any(one.kind == BACKWARD for one in entries) else {}


def _size(entries: list[Entry]) -> dict[str, object]:
    """Return from where to where what the first call of a model was given goes, where that is far from 1."""
    first = next((entry for entry in entries if entry.kind is ROOT), None)
    given = [] if first is None else [one.tensor() if isinstance(one, Made) else one.get() for one in first.words]
    tensors = [one for one in given if one is not None and one.is_floating_point() and not one.requires_grad]
    largest = max(map(fact, tensors), key=lambda one: one.absmax or 0.0, default=None)
    if largest is None or largest.bad or (largest.absmax or 0.0) < _LARGE:
        return {}
    return {"model_given": [largest.min, largest.max]}


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

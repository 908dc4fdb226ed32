"""The phase of the step that a taped call is of, by what stands before and behind it (worker)."""

from __future__ import annotations

from torch import nn

from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.memory.later.moved import by_data
from nandiag.runtime.replay.written import getter, written_by
from nandiag.runtime.tape.entry import BACKWARD, ROOT, Entry
from nandiag.runtime.tape.packed.descent import ancestors
from nandiag.runtime.tape.packed.words import Made


def phases_of(entries: list[Entry]) -> dict[int, str]:
    """Return by ``id`` the phase of each entry: data before the model, forward in it, loss after it, then backward.

    Entries of which only some are run again keep the phases that they have among all. What is computed to give weights
    other memory is no data.
    """
    models = [index for index, entry in enumerate(entries) if entry.kind == ROOT and not _is_criterion(entry)]
    backwards = [index for index, entry in enumerate(entries) if entry.kind == BACKWARD]
    known = {id(entry): _phase(index, entry, models, backwards) for index, entry in enumerate(entries)}
    moved = [entry for entry in entries if entry.function is by_data and _is_weight(entry)]
    return known | {id(one): known[id(moved[-1])] for one in ancestors(moved) if known.get(id(one)) == "data"}


def _phase(index: int, entry: Entry, models: list[int], backwards: list[int]) -> str:
    if entry.kind == BACKWARD:
        return "backward"
    if (backwards and index > backwards[-1]) or (not backwards and _is_of_gradient(entry)):
        return "optimizer"  # between backward and the step, or in a step that uses what earlier backwards left
    if entry.in_place and _is_weight(entry):
        return "init" if entry.step == 0 else "optimizer"
    if not models and not backwards and not entry.grad:
        return "data"
    if not models or index in models:
        return "forward"
    return _phase_round_model(index, entry, models, backwards)


def _phase_round_model(index: int, entry: Entry, models: list[int], backwards: list[int]) -> str:
    """Data before the model of a micro-step, forward between two modules of it, loss after the last one."""
    previous = max((one for one in backwards if one < index), default=-1)
    later = min((one for one in backwards if one > index), default=len(backwards) + models[-1] + index)
    if not any(index < model < later for model in models):
        return "loss"
    return "forward" if entry.grad or any(previous < model < index for model in models) else "data"


def _is_of_gradient(entry: Entry) -> bool:
    """Whether an entry writes into a gradient."""
    word = entry.args[0] if entry.in_place and entry.args else None
    return type(word) is Made and getter(word.entry) == "grad"


def _is_weight(entry: Entry) -> bool:
    return any(isinstance(one, nn.Parameter) or (is_leaf(one) and one.requires_grad) for _, one in written_by([entry]))


def _is_criterion(entry: Entry) -> bool:
    return isinstance(entry.function, nn.Module) and next(entry.function.parameters(), None) is None

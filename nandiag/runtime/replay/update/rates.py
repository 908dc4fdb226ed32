"""The rates that an update goes by: numbers of Python's, or tensors that the script writes into (worker)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nandiag.events import Looked
from nandiag.runtime.look.finite import fact, is_bad

_MOST = 8


def rates_used(optimizer: torch.optim.Optimizer) -> Iterator[float]:
    """Yield the rates that are numbers of Python's, and by which some weight with a gradient will be moved."""
    for group in optimizer.param_groups:
        if isinstance(rate := group.get("lr"), float) and any(one.grad is not None for one in group["params"]):
            yield rate


def bad_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors among an optimizer's settings that are not finite; reads the host."""
    settings = (value for group in optimizer.param_groups for name, value in group.items() if name != "params")
    return [one for one in settings if isinstance(one, Tensor) and is_bad(one)]


def by_tensor(made: Looked | None, step: int, rates: Sequence[Tensor], names: Sequence[str]) -> Looked:
    """Return that an update was given bad ``rates``, at the line that ``made`` them, where that is known."""
    if made is not None and made.outcome == "found":
        facts = {**made.facts, "number": True, "parameters": list(names[:_MOST])}
        return replace(made, phase="optimizer", facts=facts)
    reason = "the update was given a rate in a tensor that is not finite, and what made it was not seen"
    return Looked("refused", "replay", step, phase="optimizer", reason=reason, inputs=tuple(map(fact, rates)))

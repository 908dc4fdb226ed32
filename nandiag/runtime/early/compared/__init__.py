"""How the step of a harm compares with those before: batch, settings of the optimizer, weights that are new (worker).

Numbers that grow too large have many fathers. What is as it always was is none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nandiag.events import Compared, Setting
from nandiag.runtime.early.compared.arguments import Arguments
from nandiag.runtime.early.compared.exchanged import exchanged_between
from nandiag.runtime.early.compared.restores import restores_at
from nandiag.runtime.early.compared.settings import Settings
from nandiag.runtime.early.data.inputs import Inputs
from nandiag.runtime.early.schedule import own_files, rises_at, set_at
from nandiag.runtime.tape.packed.words import version_of

# Initialisers, a load, and a broadcast write into a weight; each update does so once more.
_FIRST_WRITES, _ENOUGH, _NAMED = 4, 8, 4
_ANEW = re.compile(r"\[[\"'][\w]+[\"']\]\s*\S?=")


class Comparison:
    """Makes the :class:`~nandiag.events.Compared` of a harm; ``name`` names a parameter of an optimizer."""

    def __init__(self, inputs: Inputs, name: Callable[[Tensor, Any], str]) -> None:
        self.settings, self.arguments = Settings(), Arguments()
        self._inputs, self._name = inputs, name

    def at_harm(self, optimizer: torch.optim.Optimizer | None, step: int, updates: int) -> Compared:
        """Return how ``step`` compares; ``optimizer``, which has made so many ``updates``, is about to make one."""
        batches, arguments = self._inputs.as_before(), tuple(self.arguments.changed(step))
        if optimizer is None:
            return Compared(step, batches, arguments=arguments)
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        fresh = _fresh(optimizer, trained, step, updates)
        names = tuple(self._name(one, optimizer) for one in fresh[:_NAMED])
        settings = tuple(_with_lines(one) for one in self.settings.of(optimizer) if _is_notable(one))
        lines = rises_at(optimizer), exchanged_between(trained), restores_at(own_files())
        return Compared(step, batches, settings, names, len(fresh), len(trained), arguments, *lines)


def _is_notable(setting: Setting) -> bool:
    return setting.changes > 0 or setting.now >= 1.0 or setting.name == "momentum"


def _with_lines(setting: Setting) -> Setting:
    """Where it changed, the lines that set it anew are meant, if any, and not the one that made the optimizer."""
    lines = set_at(setting.name.partition("[")[0])
    anew = [line for line in lines if _ANEW.search(line)] if setting.changes else []
    return replace(setting, set_at=tuple(anew or lines))


def _fresh(optimizer: torch.optim.Optimizer, trained: list[Tensor], step: int, updates: int) -> list[Tensor]:
    """Return those that no update was made of before, where others were updated in each of the steps.

    An optimizer that has made updates knows by its state of which; one without state does not tell.
    """
    versions = [version_of(one) for one in trained]
    told = updates == 0 or bool(optimizer.state)
    if step < _ENOUGH or not told or not any(one >= step for one in versions):
        return []
    new = zip(trained, versions, strict=True)
    return [
        one
        for one, version in new
        if version <= _FIRST_WRITES and one.grad is not None and (updates == 0 or one not in optimizer.state)
    ]

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
from nandiag.runtime.early.compared.settings import Settings
from nandiag.runtime.early.data.inputs import Inputs
from nandiag.runtime.early.schedule import set_at
from nandiag.runtime.tape.packed.words import version_of

# Initialisers, a load, and a broadcast write into a weight; each update does so once more.
_FIRST_WRITES, _ENOUGH, _NAMED = 4, 8, 4
_ANEW = re.compile(r"\[[\"'][\w]+[\"']\]\s*\S?=")


class Comparison:
    """Makes the :class:`~nandiag.events.Compared` of a harm; ``name`` names a parameter of an optimizer."""

    def __init__(self, inputs: Inputs, name: Callable[[Tensor, Any], str]) -> None:
        self.settings, self.arguments = Settings(), Arguments()
        self._inputs, self._name = inputs, name

    def at_harm(self, optimizer: torch.optim.Optimizer | None, step: int) -> Compared:
        """Return how ``step`` compares; ``optimizer`` is about to make an update, or made the newest."""
        batches, arguments = self._inputs.as_before(), tuple(self.arguments.changed(step))
        if optimizer is None:
            return Compared(step, batches, arguments=arguments)
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        fresh = _fresh(trained, step)
        names = tuple(self._name(one, optimizer) for one in fresh[:_NAMED])
        settings = tuple(_with_lines(one) for one in self.settings.of(optimizer) if one.changes or one.now >= 1.0)
        return Compared(step, batches, settings, names, len(fresh), len(trained), arguments)


def _with_lines(setting: Setting) -> Setting:
    """Where it changed, the lines that set it anew are meant, if any, and not the one that made the optimizer."""
    lines = set_at(setting.name.partition("[")[0])
    anew = [line for line in lines if _ANEW.search(line)] if setting.changes else []
    return replace(setting, set_at=tuple(anew or lines))


def _fresh(trained: list[Tensor], step: int) -> list[Tensor]:
    """Return those that no update was made of before, where others were updated in each of the steps."""
    versions = [version_of(one) for one in trained]
    if step < _ENOUGH or not any(one >= step for one in versions):
        return []
    pairs = zip(trained, versions, strict=True)
    return [one for one, version in pairs if version <= _FIRST_WRITES and one.grad is not None]

"""Scripts that train nothing: what counts as harm there, and how their steps are counted (worker).

Harm is a NaN or a +Inf in what a root module returns; -Inf alone is a mask. Without gradients it is told at once; with
gradients on, training may yet begin, and it is told when the script ends without. A script that calls no module at all
has its last number read to the host in the place of an output. A step is the call of a root module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.events import Harm, Looked, Note
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.extremes import Extremes
from nandiag.runtime.look.finite import fact, quiet
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.packed.nested import tensors_in

_MOST_TOLD = 3
_SHOWN = 4

Explain = Callable[[int, list[Tensor]], Looked | None]
Tell = Callable[[Harm, Looked | None], None]


class Untrained:
    """The outputs of root modules while nothing trains; ``explain`` says whence bad ones came, ``tell`` acts on it."""

    def __init__(self, explain: Explain, tell: Tell) -> None:
        self.calls = 0
        self._explain = explain
        self._tell = tell
        self._extremes = Extremes()
        self._told = 0
        self._held: tuple[Harm, Looked | None] | None = None

    @guarded("outputs")
    def root_ended(self, module: nn.Module, output: Any) -> None:
        """A root module returned ``output``."""
        with quiet():
            outputs = tensors_in(output)
            looks = [self._extremes.look(one) for one in outputs]
            self._extremes.read()
            bad = [
                one for one, look in zip(outputs, looks, strict=True)
                if look is not None and not look.finite and not look.masked
            ]  # fmt: skip
        if bad and self._told < _MOST_TOLD and self._held is None:
            self._found(module, bad, len(outputs))
        self.calls += 1

    def _found(self, module: nn.Module, bad: list[Tensor], total: int) -> None:
        with quiet():
            name = f"output of {type(module).__name__}"
            facts = tuple(fact(one, name) for one in bad[:_SHOWN])
        harm = Harm("output", self.calls, "forward", facts, len(bad), total, device=facts[0].device)
        looked = self._explain(self.calls, bad)
        if torch.is_grad_enabled():
            self._held = harm, looked
        else:
            self._told += 1
            self._tell(harm, looked)

    def ends(self, last_number: tuple[float, Looked | None] | None) -> None:
        """The script ends and has trained nothing; ``last_number`` is the last that it read, and whence that came."""
        if self.calls:
            RECORDER.emit(Note("Nothing was trained: a step is the call of a model."))
        if self._held is not None:
            self._tell(*self._held)
        elif not self.calls and last_number is not None and not math.isfinite(last_number[0]):
            with quiet():
                told = fact(torch.tensor(last_number[0]), "the last number that was read")
            self._tell(Harm("output", 0, "forward", (told,), 1, 1, device=told.device), last_number[1])

"""What the script asked of in this step, whether it is finite: it may leave on the answer (worker).

Where the step cannot be run again, that is the nearest to the origin that is known.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from torch import Tensor

from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, Trail, places_on, trail
from nandiag.runtime.look.finite import fact, quiet
from nandiag.runtime.watch.clock import Clock

_MOST, _LARGEST, _FRAMES = 8, 1 << 14, 6


class Question(NamedTuple):
    """A ``tensor`` that was asked of, without its graph, where and in which step; ``grad``: it had a graph."""

    tensor: Tensor
    grad: bool
    trail: Trail
    step: int

    def spot(self, micro_step: int) -> Spot:
        """Return the place in the script, by its and libraries' frames."""
        frames = tuple(map(Frame._make, places_on(self.trail, _FRAMES)[0]))
        return Spot(None, None, frames, "loss", micro_step)


class Asked:
    """The newest questions; nothing is read off a device for them before somebody wants to know."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._questions: deque[Question] = deque(maxlen=_MOST)

    def of(self, tensor: Any, frame: Any) -> None:
        """The script asks in ``frame`` whether ``tensor`` is finite, or reads it as a number that is not.

        Of what is large, more than a loss, nothing is kept.
        """
        if isinstance(tensor, Tensor) and tensor.numel() <= _LARGEST:
            with quiet():  # the script's own modes see nothing of it
                plain = tensor.detach()
            self._questions.append(Question(plain, tensor.requires_grad, trail(frame), self._clock.step))

    def bad(self) -> Question | None:
        """Return the step's newest question that the answer was bad to; what carried gradients goes before all else."""
        found = [one for one in self._questions if one.step == self._clock.step and is_sure(one.tensor)]
        return max(enumerate(found), key=lambda one: (one[1].grad, one[0]))[1] if found else None


def is_sure(tensor: Tensor) -> bool:
    """Whether it is no mask, and nothing that begins there: NaN is in it, or +Inf that the script looked for."""
    counted = fact(tensor)
    return bool(counted.nan or counted.posinf)

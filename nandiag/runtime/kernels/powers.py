"""What a power's gradient was taken at: its formula multiplies by a power of the base, and never shows it (worker)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nandiag.runtime.evidence.op import Op
from nandiag.runtime.guard import sparing
from nandiag.runtime.look.finite import fact

_POWERS = frozenset({"aten::pow", "aten::float_power"})
_NODES = ("PowBackward", "FloatPowerBackward")
# The formula is the power one below, times the exponent, times the gradient that came.
_FEW = 4


class Powers:
    """Tells of an op within the gradient of a power what the base of that was."""

    def __init__(self) -> None:
        self._newest: Op | None = None
        self._words: tuple[Any, ...] = ()

    def ran(self, op: Op) -> None:
        """An op of the replay ran: within such a node the first is the power one below, of the same base."""
        if (op.spot.node or "").startswith(_NODES) and op.func._schema.name in _POWERS and op.words is not None:
            self._newest, self._words = op, op.words[0]
        elif self._newest is not None and op.index - self._newest.index > _FEW:
            self._newest, self._words = None, ()

    @sparing
    def laid(self, op: Op) -> dict[str, object]:
        """Return, of an op that made something bad, between what the base lay, and the power of it that was taken."""
        newest, words = self._newest, self._words
        if newest is None or newest is op or not op.born:
            return {}
        if (newest.spot.node, newest.spot.frames) != (op.spot.node, op.spot.frames) or len(words) < 2:
            return {}
        base, power = words[:2]
        if not isinstance(base, Tensor) or type(power) not in (int, float):
            return {}
        seen = fact(base)
        return {"power_of": {"min": seen.min, "absmin": seen.absmin, "absmax": seen.absmax, "power": power}}

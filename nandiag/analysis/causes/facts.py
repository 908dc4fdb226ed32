"""What a cause is told and what it answers (reader side)."""

from __future__ import annotations

from dataclasses import dataclass

from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import Harm, History, Looked, Skipped, TensorFact, words

POSSIBLE, LIKELY, PROVEN = 1, 2, 3

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known about one origin. ``basis``: look, state, loss, gradient or scale."""

    origin: Origin
    basis: str
    harm: Harm | None = None
    look: Looked | None = None
    skip: Skipped | None = None
    history: History | None = None
    received: tuple[int, ...] = ()
    known: bool = True

    @property
    def source(self) -> str | None:
        """What the second look says the origin is: op, parameter, buffer or input; ``None`` without a finding."""
        return self.look.source if self.basis == "look" and self.look is not None else None

    @property
    def extra(self) -> dict[str, object]:
        """What the second look noted besides: scalar arguments (``arg1``), the op's result in float64, the library."""
        return self.look.facts if self.source is not None and self.look is not None else {}

    @property
    def op(self) -> str | None:
        """The short name of the origin's op (``exp``), in-place and functional forms alike."""
        return None if self.origin.op is None else words.op(self.origin.op).rstrip("_")

    @property
    def forward_op(self) -> str | None:
        """The short name of the forward op whose gradient the origin is."""
        return None if self.origin.forward_op is None else words.op(self.origin.forward_op).rstrip("_")

    @property
    def finite_inputs(self) -> bool:
        """Whether facts on the inputs are there and all are finite."""
        return bool(self.origin.inputs) and not any(fact.bad for fact in self.origin.inputs)

    @property
    def bad_state(self) -> TensorFact | None:
        """The parameter, buffer or optimizer state that is the origin, if it is one."""
        state = self.source in {"parameter", "buffer"} or self.basis == "state"
        return next((fact for fact in self.origin.inputs if fact.bad), None) if state else None


@dataclass(frozen=True, slots=True)
class Cause:
    """A named explanation. ``story`` is true for what happened to the run, false for what happened at the op.

    ``strength``: PROVEN (the facts leave nothing else), LIKELY or POSSIBLE. The first of ``evidence`` is short: it
    stands beside the source line.
    """

    slug: str
    evidence: tuple[str, ...]
    suggestions: tuple[Suggestion, ...] = ()
    strength: int = PROVEN
    story: bool = False


def dtype_of(fact: TensorFact) -> str:
    """Return the dtype without its prefix: ``float16``."""
    return fact.dtype.removeprefix("torch.")

"""Facts about one tensor, as a rank saw it (written by workers, read everywhere)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trainer:
    """An optimizer's class, and what the script calls it and the model that it trains, where that is known."""

    kind: str
    name: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRate:
    """The learning rate of one of an optimizer's groups of parameters (from 0), and the names of its first ones."""

    group: int
    lr: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A number that a group of an optimizer's (from 0) is told, but the learning rate: momentum, weight decay, a beta.

    ``rate`` is the group's learning rate now, where it is a plain number. ``first`` is what the setting was in the
    first step, ``most`` the largest that it was. It changed ``changes`` times, the last time from ``before`` by the
    update of ``step``; both are ``None`` where it never did. ``set_at`` are the lines (``file:line: text``) that set
    it, where the script's text has few of them.
    """

    group: int
    name: str
    now: float
    rate: float | None = None
    before: float | None = None
    first: float | None = None
    most: float | None = None
    step: int | None = None
    changes: int = 0
    set_at: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Argument:
    """A number that a root module is called with, by the name that its ``forward`` has for it, and what it was."""

    name: str
    before: float
    now: float


@dataclass(frozen=True, slots=True)
class TensorFact:
    """Statistics of one tensor (on DTensor: of the local shard, whose ``numel`` it is, with the whole ``shape``).

    Never its values.

    ``nan``, ``posinf``, ``neginf`` and ``zeros`` are counts of elements. ``min``, ``max`` and ``absmax`` are over the
    finite elements alone and ``None`` where there are none; ``absmin`` is the least size of those that are not 0,
    ``None`` where there are none or it is not known. ``first_bad`` is the index of the first non-finite element
    in row-major order, ``None`` when all are finite. ``counted`` is false where only the extremes of the tensor are
    known: then ``nan``, ``posinf`` and ``neginf`` are 1 for some, and 0 may mean that a NaN hides others. ``guessed``:
    numbers that were made up stood there, or made it what it is: what it says of values was not seen.
    """

    dtype: str
    shape: tuple[int, ...]
    numel: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    min: float | None = None
    max: float | None = None
    absmax: float | None = None
    device: str = "cpu"
    placement: str | None = None
    name: str | None = None
    first_bad: tuple[int, ...] | None = None
    counted: bool = True
    absmin: float | None = None
    guessed: bool = False

    @property
    def bad(self) -> int:
        """Count of non-finite elements."""
        return self.nan + self.posinf + self.neginf

    @property
    def only_neginf(self) -> bool:
        """Whether -Inf is all that is bad, as in a mask."""
        return bool(self.neginf) and not self.nan and not self.posinf

    @property
    def kind(self) -> str | None:
        """``"nan"`` when any element is NaN, else ``"inf"`` when any is infinite, else ``None``."""
        if self.nan:
            return "nan"
        return "inf" if self.posinf or self.neginf else None

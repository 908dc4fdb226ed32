"""What is known of memory that the script wrote before it began to train (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from nandiag.events import TensorFact
from nandiag.runtime.frames import Place
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.packed.words import version_of

OP, UNWRITTEN, FILE, OUTSIDE, LAST, RECEIVED = "op", "unwritten", "file", "outside", "last", "received"

# By these others than torch may write into memory.
EXPOSES = frozenset({
    "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "_typed_storage", "share_memory_",
})  # fmt: skip


class Call(NamedTuple):
    """One call of a torch function that the script made: its name, and the frames that made it, innermost first."""

    name: str
    places: Sequence[Place]


@dataclass(frozen=True, slots=True)
class Birth:
    """Whence bad values come.

    ``how``: ``op`` (made by this call of finite inputs), ``unwritten`` (memory that this call handed out and nothing
    filled), ``file`` (they lay in the file that was read), ``outside`` (they came into torch by this call),
    ``received`` (another rank sent what this call was given) or ``last`` (this call wrote last; whether it made them is
    not known). ``op``, ``inputs`` and ``outputs`` are those of the one
    op within the call where running it again showed it.
    """

    how: str
    call: Call
    op: str | None = None
    inputs: tuple[TensorFact, ...] = ()
    outputs: tuple[TensorFact, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filed:
    """A tensor as it was read from a file, by its key there. Nobody has looked at its values."""

    call: Call
    key: str
    path: str | None


class Finite(NamedTuple):
    """Memory that was seen finite when it was last written."""


class Waiting:
    """Memory that was written and not looked at: too large to read at once, or on a device not to be waited for.

    ``norm`` is a number on its device that is finite only if all of it was; ``sources`` is what was known of what went
    into the call, one entry for each tensor.
    """

    __slots__ = ("call", "norm", "sources", "target", "version")

    def __init__(self, call: Call, target: Tensor, norm: Tensor | None, sources: Sequence[Any]) -> None:
        self.call = call
        self.norm = norm
        self.sources = tuple(sources)
        self.target = Weakly(target)
        self.version = version_of(target)


FINITE = Finite()


# What numbers of Python, or another's memory, come into torch by.
FROM_DATA = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "frombuffer", "from_dlpack"})

# They end as what writes into what it is given, and write into the gradients of that alone.
CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})


def is_in_place(name: str) -> bool:
    """Whether a torch function of this name writes into its first argument."""
    dunder = name.startswith("__")
    return name != "requires_grad_" and (
        (name.endswith("_") and not dunder)
        or name == "__setitem__"
        or (dunder and name.startswith("__i") and len(name) > 6)
    )

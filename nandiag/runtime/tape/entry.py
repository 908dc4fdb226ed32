"""An entry of the tape: one thing that the step did, and what it takes to do it again (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from nandiag.runtime.frames import Frame, Place, Trail, places_on
from nandiag.runtime.memory.weakly import Staying
from nandiag.runtime.tape.calls.contents import Content
from nandiag.runtime.tape.calls.sides import Side
from nandiag.runtime.tape.calls.swaps import Swapped
from nandiag.runtime.tape.loop.forwards import Forward
from nandiag.runtime.tape.packed.words import Given, Made
from nandiag.runtime.tape.state import Generators, Modes

_FRAMES = 6
_NO_WORDS: Mapping[str, Any] = MappingProxyType({})
ROOT, CALL, BACKWARD = "root", "call", "backward"


class Entry:
    """One thing the step did: the call of a root module, a torch function outside of modules, or a backward."""

    # What most entries have not; no slots, for then each would be set in each entry of each step.
    args: Any = ()
    kwargs: Any = _NO_WORDS
    words: Sequence[Made | Given] = ()
    trail: Trail = ()
    generators: Generators | None = None
    buffers: Iterable[tuple[Tensor, Tensor]] = ()
    attributes: Sequence[tuple[dict[str, Any], dict[str, Any]]] = ()
    left: Sequence[tuple[dict[str, Any], dict[str, Any]]] = ()
    sides: Sequence[Side] = ()
    contents: Sequence[Content] = ()
    forwards: Sequence[Forward] = ()  # by which modules were called, where it could be others
    inner: Sequence[Staying] = ()  # what its modules hold and it writes into, but for weights and buffers
    before: tuple[Tensor, Tensor] | None = None
    swapped: Swapped | None = None
    apart: bool | None = None  # what :func:`descent.is_of_calls_alone` found
    in_place = held = lost = split = False  # the last two: as what its modules held could be packed
    settled = False  # what goes into it was kept for a write into a weight
    number = step = micro_step = first_side = 0  # the index of the first side among the outputs

    def __init__(self, kind: str, function: Any, *, grad: bool, modes: Modes) -> None:
        self.kind = kind
        self.function = function
        self.grad = grad
        self.modes = modes

    @property
    def mutates(self) -> bool:
        """Whether it matters though what it returns is gone: it wrote into something, or hooked itself to it."""
        return self.in_place or self.name.startswith("__set") or self.name in {"register_hook", "retain_grad"}

    @property
    def places(self) -> Sequence[Place]:
        """Where it was called, the user's and libraries' places only, innermost first, in a Frame's order."""
        return places_on(self.trail, _FRAMES, own=True)[0]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The user's and libraries' frames that called it, innermost first."""
        return tuple(map(Frame._make, self.places))

    @property
    def makers(self) -> Iterator[Entry]:
        """The entries that are to be made again first, for it was given their outputs."""
        return (word.entry for word in self.words if type(word) is Made and not word.taken)

    @property
    def retains(self) -> bool:
        """Whether a backward call leaves the graph that it went through as it is."""
        words = (*self.args, *self.kwargs.values()) if self.kwargs else self.args or ()
        return bool([word for word in words if word is True])

    def forget(self) -> None:
        """Let go of everything: this call will not be made again."""
        self.args = self.kwargs = self.before = self.swapped = self.generators = None
        self.words = self.buffers = self.attributes = self.left = self.sides = self.contents = self.forwards = ()

    @property
    def name(self) -> str:
        """The name of the function called."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

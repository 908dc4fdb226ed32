"""One op as it was seen while it ran, and what its schema tells of it (worker)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.events import TensorFact
from nandiag.runtime.evidence.elements import led_from
from nandiag.runtime.evidence.explain import in_float64, scalars_of
from nandiag.runtime.evidence.op import Op, Stat
from nandiag.runtime.evidence.walk import ancestors
from nandiag.runtime.look.extremes import Look
from nandiag.runtime.look.finite import fact, is_bad, norms
from nandiag.runtime.memory.known.unwritten import EMPTY
from nandiag.runtime.memory.there import all_there
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import is_of

_SHOWN = 4


class ByItself(NamedTuple):
    """What has no memory that others may share (a sparse tensor): it is there for as long as the object is."""

    tensor: Callable[[], Tensor | None]

    def expired(self) -> bool:
        """Whether it is gone."""
        return self.tensor() is None


def kept_by(tensor: Tensor) -> StorageWeakRef | ByItself:
    """Return what tells whether the memory of ``tensor`` is there yet: it keeps the address from others, no more."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (RuntimeError, NotImplementedError):
        return ByItself(Weakly(tensor))


@dataclass(slots=True)
class Watched(Op):
    """An op seen live: the looks at what went in (and who had written it last) and at what came out; its step."""

    looks: list[Look] = field(default_factory=list)
    writers: list[Op | None] = field(default_factory=list)
    made: list[Look] = field(default_factory=list)
    step: int = 0
    grad: bool = False
    remembered: dict[str, object] = field(default_factory=dict)
    cured: bool = False  # what it wrote was made finite again
    read: bool = False  # as a number

    @property
    def known(self) -> bool:
        """Whether all looks have been read."""
        return all(look.known for look in (*self.looks, *self.made))

    @property
    def bad(self) -> bool:
        """Whether anything that it wrote is not finite."""
        return any(self.outputs)

    @property
    def makes_bad_number(self) -> bool:
        """Whether it made, with gradients on, a single number that is not finite."""
        return self.grad and any(look.numel == 1 and not look.finite for look in self.made)

    @property
    def bytes(self) -> int:
        """The memory that its arguments and results keep, in bytes."""
        given = () if self.words is None else tensors_in((self.words[0], list(self.words[1].values())))
        return sum(one.numel() * one.element_size() for one in (*given, *self.results))

    def read_looks(self) -> None:
        """Take from its looks, now that they are known, what went in and came out."""
        self.inputs, self.outputs = [*map(stat_of, self.looks)], [*map(stat_of, self.made)]
        there = [one for look in self.looks if (one := look.of()) is not None and look.is_of(one)]
        if self.words is not None and len(there) == len(self.looks):
            self.inputs = led_from(self, there, self.results)

    def forget_values(self) -> None:
        """Let go of every tensor that it holds."""
        self.words, self.results = None, []

    def remember(self) -> None:
        """Keep what its values tell, and let go of them: the step is over, and what it wrote is still bad."""
        if self.words is not None and self.born and not self.constant:
            self.tell()
            self.remembered = {**scalars_of(self), **in_float64(self)}
        self.forget_values()

    def let_go(self, parted: set[int]) -> None:
        """Hold none of the tensors whose ``id`` is among ``parted``, and no view of one."""
        words = () if self.words is None else tensors_in((self.words[0], list(self.words[1].values())))
        if any(is_of(parted, one) for one in words):
            self.remember()
        self.outside = [
            replace(one, tensor=one.tensor.detach()) if is_of(parted, one.tensor) else one for one in self.outside
        ]

    def shorten(self) -> None:
        """Keep of its ancestors the few that may be the origin, without what they hold."""
        chain = ancestors([self])
        for one in chain:
            if isinstance(one, Watched):
                one.remember()
        self.parents = [one for one in chain if one is not self and (one.born or one.outside or one.born_nan)][:8]

    def tell(self) -> None:
        """Put into ``told`` what is known; keep ``words`` and ``results`` only where they are still what was seen."""
        if self.told[1]:
            return
        if self.words is None or not all(_still_there(look) for look in self.looks):
            self.remembered = scalars_of(self)
            self.words = None
        self.told = tuple(map(_told, self.looks[:_SHOWN])), tuple(map(_told, self.made[:_SHOWN]))
        alike = len(self.made) == len(self.results)
        if alike and any(map(_is_written_over, self.made, self.results)):
            self.results = []


def _still_there(look: Look) -> bool:
    tensor = look.of()
    return tensor is not None and look.is_of(tensor) and all_there([tensor])


def _told(look: Look) -> TensorFact:
    tensor = look.of() if look.fact is None else None
    return fact(tensor) if tensor is not None and _still_there(look) else look.told()


def _is_written_over(look: Look, result: Tensor) -> bool:
    """Whether a result holds something else by now than what was seen of it; no version of it tells.

    An op that writes in place counts it only when it is over, and what is written through numpy never.
    """
    if not all_there([result]):
        return True
    return is_bad(result) is look.finite if look.fact is None else fact(result) != look.told()


def stat_of(look: Look) -> Stat | None:
    """Return which non-finite values a look has shown; a NaN hides what else there is."""
    if look.finite:
        return None
    return Stat(math.isnan(look.low), look.high == math.inf, look.low == -math.inf)


class Traits(NamedTuple):
    """What an op does: its plain name, which arguments it writes (by place or name), whether it only gives a view.

    ``may_copy``: its schema tells of a view, and where that cannot be it gives a copy. ``brings``: it lays a tensor
    over memory that is there, as what comes from another process or from a file.
    """

    name: str
    writes: tuple[int | str, ...]
    view: bool
    empty: bool
    may_copy: bool
    brings: bool

    def targets(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors among the arguments that the op writes into."""
        found: list[Tensor] = []
        for one in self.writes:
            if isinstance(one, str):
                tensors_in(kwargs.get(one), found)
            elif one < len(args):
                tensors_in(args[one], found)
        return found


# Under inference mode they come by as they were called, not as what they are made of.
_MAY_COPY = frozenset({
    "to", "reshape", "reshape_as", "contiguous", "flatten", "ravel", "type_as", "resolve_conj",
    "resolve_neg",
})  # fmt: skip


@functools.lru_cache(maxsize=4096)
def traits(func: Any) -> Traits:
    """Tell by its schema what an op does."""
    schema = func._schema
    writes: tuple[int | str, ...] = tuple(
        argument.name if argument.kwarg_only else index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = schema.name.partition("::")[2]
    if "batch_norm" in name and "backward" not in name:
        writes = (*writes, 3, 4)  # running statistics are written without the schema saying so
    aliases = [one.alias_info for one in schema.returns]
    view = bool(aliases) and not writes and all(alias is not None for alias in aliases) and name != "lift_fresh"
    may_copy = view and name in _MAY_COPY
    brings = name == "set_" and func._overloadname.startswith("source_")
    return Traits(name, writes, view and not may_copy, name in EMPTY and not brings, may_copy, brings)


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether many tensors on the CPU are all finite, by one number."""
    return all(math.isfinite(one.item()) for one in norms(tensors))


def on_cpu(tensor: Tensor) -> bool:
    """Whether reading from the tensor waits for nothing."""
    return tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def is_subclass(kind: Any) -> bool:
    """Whether a class of tensors takes its ops apart by itself."""
    return kind not in (Tensor, torch.nn.Parameter) and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def foreign(types: Any) -> str | None:
    """Return whether an op is a "subclass"'s or a "shadow"'s, which has no values; None for one of plain tensors."""
    kinds = [kind for kind in types if is_subclass(kind)]
    if any(kind.__module__.startswith("torch._subclasses") for kind in kinds):
        return "shadow"
    return "subclass" if kinds else None

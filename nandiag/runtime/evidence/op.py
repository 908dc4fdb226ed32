"""One op of a replay: what went in, what came out, where it ran, and the ops that wrote what was bad in it (worker)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nandiag.events import TensorFact
from nandiag.runtime.frames import Frame
from nandiag.runtime.look.finite import extent, is_bad, local, norm_of
from nandiag.runtime.memory.lost.shadows import Lost
from nandiag.runtime.memory.lost.vanished import Vanished
from nandiag.runtime.memory.overwritten import outs_of
from nandiag.runtime.replay.exchanges.carrier import Carrier
from nandiag.runtime.tape.packed.nested import tensors_in

_SUMS = frozenset({
    "sum", "mean", "dot", "nll_loss_forward", "nll_loss2d_forward", "gather", "amax", "amin", "max", "min",
})  # fmt: skip
# What lays an infinity that the script itself writes, as a mask.
_CONSTANTS = frozenset({
    "masked_fill", "masked_fill_", "full", "fill_", "fill", "full_like", "new_full", "scalar_tensor", "lift_fresh",
    "constant_pad_nd", "_to_copy", "where", "index_fill", "index_fill_", "mul",
})  # fmt: skip
_EXPONENTIALS = frozenset({"exp", "exp2", "expm1"})
# In which a norm overflows of huge numbers alone.
_WIDE = frozenset({torch.float32, torch.float64})
_PICKS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "gather", "index"})


@dataclass(frozen=True, slots=True)
class Stat:
    """Which non-finite values a tensor holds."""

    nan: bool
    posinf: bool
    neginf: bool


def stat_of(tensor: Tensor) -> Stat | None:
    """Return what this rank holds of ``tensor`` that is not finite, None where that is nothing, or it has no floats.

    Raises RuntimeError or NotImplementedError where it cannot be looked at.
    """
    data = local(tensor)
    if data is None or (data.is_cpu and data.dtype in _WIDE and math.isfinite(norm_of(data).item())):
        return None
    low, high = extent(data)
    # The host waits once and not twice, on a device: a sum is finite only where both are.
    if math.isfinite((low + high).item()):
        return None
    nan = math.isnan(low.item())
    if nan:  # infinities beside it are not among the ends
        low, high = extent(torch.nan_to_num(data, nan=0.0, posinf=math.inf, neginf=-math.inf))
    found = Stat(nan, high.item() == math.inf, low.item() == -math.inf)
    return found if nan or found.posinf or found.neginf else None


@dataclass(frozen=True, slots=True)
class Spot:
    """Where an op ran: module, user frames innermost first, phase, and for backward the node and its forward op.

    ``twice``: the forward op was made by a backward itself, whose place this is. ``dual``: forward-mode derivatives
    were under way: what torch computes of an op's tangent has the place of that op.
    """

    module: str | None
    module_class: str | None
    frames: tuple[Frame, ...]
    phase: str
    micro_step: int
    node: str | None = None
    forward_op: str | None = None
    recompute: bool = False
    library: bool = False
    twice: bool = False
    dual: bool = False


@dataclass(frozen=True, slots=True)
class Outside:
    """A bad input that no op of the replay wrote: facts as it was used, and its FQN where it is a parameter in use."""

    tensor: Tensor
    fact: TensorFact
    parameter: str | None


@dataclass(slots=True)
class Op:
    """One op with a non-finite output; ``parents`` wrote its bad inputs, ``outside`` are those that no op wrote.

    ``told`` are facts on inputs and outputs that are gone, where nothing is kept in ``words`` and ``results``.
    ``vanished`` is the exponential of whose zeros both sides of a division are made. ``lost`` are the ops that lost
    digits without which it would not have broken. ``apart``: it may be what a tensor subclass (DTensor) made of an op
    of its own, behind autograd: what goes in has no gradient there. A collective is ``through`` where an op has written
    since into what it writes, or has waited for it. ``elsewhere``: it was given bad values besides, at indices where
    nothing bad came of them; ``inputs`` holds none of these. ``factored`` are the matrices that had a Cholesky factor
    made last. ``powered`` tells, within the gradient of a power, what that was taken of. ``made_of`` are the places of
    the batches that went into what it was given.
    """

    index: int
    func: Any
    spot: Spot
    outputs: list[Stat | None]
    inputs: list[Stat | None]
    parents: list[Op] = field(default_factory=list)
    outside: list[Outside] = field(default_factory=list)
    constant: bool = False
    collective: bool = False
    carrier: Carrier | None = None
    words: tuple[Any, Any] | None = None
    results: list[Tensor] = field(default_factory=list)
    told: tuple[tuple[TensorFact, ...], tuple[TensorFact, ...]] = ((), ())
    vanished: Vanished | None = None
    lost: tuple[Lost, ...] = ()
    apart: bool = False
    through: bool = False
    elsewhere: bool = False
    factored: tuple[Tensor, ...] = ()
    powered: dict[str, object] = field(default_factory=dict)
    made_of: frozenset[int] = frozenset()

    @property
    def born(self) -> bool:
        """Whether it made non-finite values out of finite ones."""
        return (not any(self.inputs) and not self.outside) or self._outgrows

    @property
    def _outgrows(self) -> bool:
        """Whether an exponential made +Inf beside a mask: of -inf it makes 0."""
        name = self.func._schema.name.partition("::")[2].rstrip("_")
        if name not in _EXPONENTIALS or not all(one.fact.only_neginf for one in self.outside):
            return False
        masked = not any(stat is not None and (stat.nan or stat.posinf) for stat in self.inputs)
        return masked and any(stat is not None and stat.posinf for stat in self.outputs)

    @property
    def born_nan(self) -> bool:
        """Whether it made NaN out of inputs that hold infinities but no NaN."""
        made = any(stat is not None and stat.nan for stat in self.outputs)
        return made and any(self.inputs) and not any(stat is not None and stat.nan for stat in self.inputs)

    @property
    def sums(self) -> bool:
        """Whether it adds up, or picks of, what a mask has made infinite and what it has left in."""
        return self.func._schema.name.partition("::")[2] in _SUMS and any(self.inputs)

    @property
    def empties(self) -> bool:
        """Whether it gives the logarithm of a sum of nothing: a row that it is taken of is -inf all over."""
        return self.func._schema.name.partition("::")[2] == "logsumexp" and any(self.inputs)

    @property
    def picks(self) -> bool:
        """Whether it picks, by numbers that tell where, of what is bad in places."""
        return self.func._schema.name.partition("::")[2] in _PICKS and any(self.inputs)


def alone(op: Op) -> Op:
    """Return of an op on lists of tensors (``torch._foreach_*``) the part that broke; any other op as it is.

    That is the first of its results that is bad by itself, with the members of the lists that it was made of.
    """
    if op.words is None or not op.func._schema.name.startswith("aten::_foreach_"):
        return op
    bad = [place for place, result in enumerate(op.results) if is_bad(result)]
    by_itself = (place for place in bad if not any(map(is_bad, _members(op.words, place))))
    place = next(by_itself, next(iter(bad), None))
    if place is None:
        return op
    args, kwargs = op.words
    given = tuple(_only(word, place) for word in args), {name: _only(word, place) for name, word in kwargs.items()}
    return replace(op, words=given, results=op.results[place : place + 1])


def _members(words: tuple[Any, Any], place: int) -> list[Tensor]:
    parts = (_only(word, place) for word in (*words[0], *words[1].values()))
    return [part[0] for part in parts if type(part) in (list, tuple) and part and isinstance(part[0], Tensor)]


def _only(word: Any, place: int) -> Any:
    """Return a list with one of its members, and anything else as it is."""
    return word[place : place + 1] if type(word) in (list, tuple) else word


def is_constant(op: Op) -> bool:
    """Tell whether the script itself wrote an infinity here (a mask), rather than computed it."""
    name = op.func._schema.name.partition("::")[2]
    if name not in _CONSTANTS or not op.born or op.words is None:
        return False
    args, kwargs = op.words
    if name == "mul" and not _lays_itself(op, args):
        return False
    if name == "lift_fresh" or (name == "_to_copy" and not tensors_in(args)):
        return True
    return any(isinstance(word, int | float) and not math.isfinite(word) for word in [*args, *kwargs.values()])


def _lays_itself(op: Op, args: Any) -> bool:
    """Whether -inf alone is laid, as by ``-inf * ones_like(scores)``: what is multiplied is 1 throughout.

    Else a coefficient is without end, and it is that which is to be told.
    """
    tensor = next((one for one in args if isinstance(one, Tensor)), None)
    if tensor is None or tensor.numel() < 2 or not tensor.is_floating_point():
        return False
    if any(stat is None or stat.nan or stat.posinf for stat in op.outputs):
        return False
    low, high = extent(tensor.detach())
    return bool(low == high == 1)


def given_of(op: Op) -> list[Tensor]:
    """Return the tensors that an op was given to read, where they are kept: not those that it writes into."""
    if op.words is None:
        return []
    given, outs = tensors_in((op.words[0], list(op.words[1].values()))), outs_of(op.func, op.words[1])
    return [one for one in given if not any(one is out for out in outs)]


def as_written(op: Op, chain: list[Op]) -> Op:
    """Return the division of 0 that the script wrote, where torch took the reciprocal of what divides before.

    It does so for a number over a tensor. That 1/0 is +Inf is no matter to the script: what it gets is 0/0.
    """
    if op.func._schema.name != "aten::reciprocal" or op.words is None or op.spot.node is not None:
        return op
    by = next((one for one in chain if any(parent is op for parent in one.parents)), None)
    if by is None or by.func._schema.name != "aten::mul" or by.words is None or by.spot.frames != op.spot.frames:
        return op
    over, divisor = by.words[0][-1], op.words[0][0]
    if not _is_zero(over):
        return op
    zero = torch.zeros((), dtype=divisor.dtype, device=divisor.device)
    words: tuple[Any, Any] = (zero, divisor), {}
    return replace(op, func=torch.ops.aten.div.Tensor, words=words, results=by.results, outputs=by.outputs)


def _is_zero(over: Any) -> bool:
    number = over.item() if isinstance(over, Tensor) and over.dim() == 0 and over.is_cpu else over
    return isinstance(number, int | float) and number == 0

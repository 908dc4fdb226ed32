"""Walk back from the harm over the graph of non-finite values to the op from which it descends (worker)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import bool as bool_

from nandiag.runtime.births.known import OP, Birth
from nandiag.runtime.evidence.data.missing import behind_mask
from nandiag.runtime.evidence.explain import frame_of
from nandiag.runtime.evidence.heard import is_maker
from nandiag.runtime.evidence.op import Op, alone, as_written
from nandiag.runtime.numeric.lineage import leads, lines_of
from nandiag.runtime.numeric.warned import HEARD
from nandiag.runtime.tape.packed.nested import tensors_in

if TYPE_CHECKING:
    from nandiag.runtime.births.births import Births

_MOST_BESIDE = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The origin on this rank: ``source`` is ``op``, ``outside`` (it came in from outside the step) or ``received``."""

    op: Op
    source: str
    chain: int
    phase: str


def ancestors(ends: list[Op]) -> list[Op]:
    """Return ``ends`` and every op that any of them descends from, in the order in which they ran."""
    seen: dict[int, Op] = {}
    waiting = list(ends)
    while waiting:
        op = waiting.pop()
        if id(op) not in seen:
            seen[id(op)] = op
            waiting.extend(op.parents)
    return sorted(seen.values(), key=lambda op: op.index)


def origin(ends: list[Op]) -> Finding | None:
    """Return the first op that made, took in or received what the harm descends from; None when there is none."""
    chain = ancestors(ends)
    births = [op for op in chain if op.born and not op.collective and not _is_mask(op)]
    received = [op for op in chain if op.collective and not op.parents]
    taken = [op for op in chain if op.outside]
    serious = [op for op in taken if _serious(op)]
    first = min([*births, *received, *serious], key=lambda op: op.index, default=None) or _of_masks(chain, taken)
    if first is None:
        return None
    first = _met_behind(first, chain) or behind_mask(first, chain, ends) or _laid_by(first, chain)
    return Finding(as_written(alone(first), chain), _source(first), len(chain), _phase(first, chain))


def _met_behind(first: Op, chain: list[Op]) -> Op | None:
    """+Inf that ``torch.where`` lays for what is missing is a mask: return the op that made NaN by it."""
    laid = first.constant and first.func._schema.name == "aten::lift_fresh"
    if not laid or any(stat is not None and stat.nan for stat in first.outputs):
        return None
    by = next((op for op in chain if first in op.parents), None)
    turned = next((op for op in chain if op.born_nan), None)
    where = by is not None and turned is not None and _name(by) == "where"
    return turned if where and turned is not None and _name(turned) in _ON_TWO_NUMBERS else None


def beside(ends: list[Op], found: Finding) -> list[Finding]:
    """Return what the harm descends from besides an origin that is an op: others that made it of finite values.

    Of each of the script's expressions the first op, in order, and of few of them.
    """
    chain = ancestors(ends)
    births = [op for op in chain if op.born and not (op.collective or op.outside or _is_mask(op))]
    known, others = [frame_of(found.op.spot)], list[Finding]()
    for op in births if found.source == "op" else ():
        frame = frame_of(op.spot)
        if frame is not None and frame not in known and len(others) < _MOST_BESIDE:
            known.append(frame)
            others.append(Finding(alone(op), "op", len(chain), _phase(op, chain)))
    return others


def _of_masks(chain: list[Op], taken: list[Op]) -> Op | None:
    """Infinities that the script wrote itself only harm where they turn into NaN, or where what they leave is read."""
    turned = [op for op in chain if op.born_nan]
    masks = [op for op in chain if op.constant]
    summed = [op for op in chain if op.sums and not _holds_nan(op)]
    if turned and turned[0].sums and not taken:
        turned = summed[:1]  # what was read of a mask before two infinities met there
    if turned and _mixes(turned[0]) and masks:
        turned = _read_before(turned[0]) or turned
    brought = taken if turned and _mixes(turned[0]) and not masks else []
    return next(iter(brought or turned or taken or _emptied(summed) or summed or masks), None)


def _emptied(summed: list[Op]) -> list[Op]:
    """Return the last logarithm of a sum of nothing before what was added up: what it gives is no mask any more.

    Those before it may be meant: what cannot be reached so far has a chance of 0.
    """
    return [op for op in ancestors(summed[:1]) if op.empties and not _holds_nan(op)][-1:]


def _read_before(op: Op) -> list[Op]:
    """Return where an infinity was read of a mask that then went into ``op``, which no infinity is meant for."""
    return [one for one in ancestors([op]) if one.sums and not one.born_nan and not _holds_nan(one)][:1]


def picked(ends: list[Op]) -> Finding | None:
    """Return the first op that picked what a mask has made infinite, by whole numbers: a target that is masked out."""
    chain = ancestors(ends)
    found = next((op for op in chain if op.picks and not _holds_nan(op) and _by_numbers(op)), None)
    return None if found is None else Finding(found, "op", len(chain), _phase(found, chain))


def raised(ends: list[Op], found: Finding, births: Births | None, step: int) -> Finding:
    """Return where -inf came into the step that is no mask: it was turned to +Inf, or two numbers became NaN by it.

    ``found`` where it is no such -inf, or where neither anything of before the first step is known to have computed it
    nor one line that numpy complained of in this ``step``.
    """
    chain = ancestors(ends) if found.op.born_nan and births is not None else []
    taken = next((op for op in chain if op.outside), None)
    if taken is None or births is None:
        return found
    birth, met = births.of(taken.outside[0].tensor), _meets(found.op, chain)
    harms = met or any(map(_raises, chain))
    computed = birth is not None and birth.how == OP
    heard = birth is None and _is_of_this_step(taken, step)
    brought = Finding(taken, "outside", len(chain), taken.spot.phase)
    return brought if harms and (computed or heard or (met and _is_of_a_table(taken, birth))) else found


def _is_of_a_table(taken: Op, birth: Birth | None) -> bool:
    """Whether one place where numpy made infinities of zeros before the first step leads to what was taken in."""
    at = lines_of(taken.spot.frames if birth is None else birth.call.places)
    return sum(leads(lines_of(one.places), at) is True for one in HEARD.tables) == 1


def _is_of_this_step(taken: Op, step: int) -> bool:
    """Whether one place where numpy made infinities in this very step may be what was taken in."""
    at = lines_of(taken.spot.frames)
    return sum(is_maker(one, step, at) for one in HEARD.all()) == 1


def _meets(op: Op, chain: list[Op]) -> bool:
    """Whether it has two numbers meet, with no mask laid by hand, and no maximum of a row taken, before it."""
    return _name(op) in _ON_TWO_NUMBERS and not any(one.constant or _name(one) in _MAXIMA for one in chain)


_MAXIMA = frozenset({"amax", "max", "logsumexp"})


def _raises(op: Op) -> bool:
    """Whether +Inf is made of -inf alone, as ``exp(-x)`` and ``x ** 2`` do."""
    given, made = [one for one in op.inputs if one is not None], [one for one in op.outputs if one is not None]
    masked = any(one.neginf for one in given) and not any(one.nan or one.posinf for one in given)
    return masked and any(one.posinf for one in made)


def _by_numbers(op: Op) -> bool:
    return any(not (one.is_floating_point() or one.dtype is bool_) for one in tensors_in(op.words))


def is_brought(op: Op) -> bool:
    """Whether the values came into torch with it, or right before it, as numpy's do: what made them stands before."""
    return op.func._schema.name == "aten::lift_fresh" or not (op.born or op.born_nan)


def _phase(first: Op, chain: list[Op]) -> str:
    """What was computed to be written into a weight is no data, though it ran before the model did.

    But for what came to the weight by way of the model: that was its input.
    """
    turn = next((op.spot.phase for op in chain if op.spot.phase in _WRITES or op.spot.phase in _MODEL), None)
    return turn if turn is not None and turn in _WRITES and first.spot.phase == "data" else first.spot.phase


_WRITES = frozenset({"init", "optimizer"})
_MODEL = frozenset({"forward", "loss"})


def _laid_by(first: Op, chain: list[Op]) -> Op:
    """A number becomes a tensor (lift_fresh) before it is laid into one: the op that lays it is what was written."""
    if first.func._schema.name != "aten::lift_fresh":
        return first
    return next((op for op in chain if first in op.parents and op.words is not None), first)


def _is_mask(op: Op) -> bool:
    """A constant infinity is a mask until it harms; a constant NaN, or +inf laid into data, is the script's doing."""
    if not op.constant:
        return False
    laid = op.func._schema.name == "aten::lift_fresh"
    return not any(stat is not None and (stat.nan or (laid and stat.posinf)) for stat in op.outputs)


def _source(op: Op) -> str:
    if op.collective:
        return "received"
    if not op.outside or (op.born_nan and not _spoilt(op)):
        return "op"
    return "outside"


def _spoilt(op: Op) -> bool:
    """Whether an infinity came into it from outside as data do, and no op on two numbers is to blame for the NaN.

    A norm, a softmax or a matrix product makes NaN of any infinity; a product with 0 is the line to mend. -Inf is a
    mask to a softmax, and none to a matrix product or a norm.
    """
    plain = _name(op) in _ON_TWO_NUMBERS
    return not plain and any(one.fact.posinf or (one.fact.neginf and _mixes(op)) for one in op.outside)


def _mixes(op: Op) -> bool:
    """Whether it makes each number of many, with weights of any sign: no place for a mask of -inf."""
    return _name(op) in _MIXING


def _name(op: Op) -> str:
    return str(op.func._schema.name).partition("::")[2].rstrip("_")


_ON_TWO_NUMBERS = frozenset({"mul", "sub", "rsub", "add", "div", "addcmul", "addcdiv", "remainder", "where"})

_MIXING = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "linear", "native_layer_norm", "native_group_norm",
    "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm",
})  # fmt: skip


def _serious(op: Op) -> bool:
    """NaN and +inf from outside are bad input; -inf from outside is a mask, whatever it meets."""
    return any(not one.fact.only_neginf for one in op.outside)


def _holds_nan(op: Op) -> bool:
    return any(stat is not None and stat.nan for stat in op.inputs)

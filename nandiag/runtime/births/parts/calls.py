"""What a call that is seen before training writes, and of what (worker)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

from nandiag.runtime.births.again import Words
from nandiag.runtime.births.known import FINITE, Call
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.look.finite import fact
from nandiag.runtime.memory.laid import onto_itself
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.tape.packed.nested import tensors_in

_MOST_TARGETS = 4096
_PLAIN, _BASIC = (Tensor, Parameter), (int, slice, type(None))
PARTIAL = frozenset({
    "__setitem__", "index_put_", "index_copy_", "index_add_", "index_fill_", "masked_fill_", "masked_scatter_",
    "scatter_", "scatter_add_", "scatter_reduce_", "fill_diagonal_", "put_",
})  # fmt: skip
_FILLS = frozenset({
    "copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "trunc_normal_",
    "constant_", "zeros_", "ones_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
    "orthogonal_", "eye_", "dirac_", "sparse_",
})  # fmt: skip


def targets_of(words: Words, output: Any) -> list[Tensor]:
    """Return the tensors of floats that a call has written: what it wrote into, else what it returned."""
    if words.target is not None:
        return [words.target] if words.target.is_floating_point() else []
    many = [one for one in tensors_in(output)[:_MOST_TARGETS] if one.is_floating_point()]
    known = {storage(one) for one in tensors_in((words.args, words.kwargs))} if many else set()
    return [one for one in many if storage(one) not in known]  # a view of what was given is no value of its own


def given_to(words: Words, target: Tensor) -> Iterator[Tensor]:
    """Yield the tensors of floats that went into a call, but for the memory that it wrote into."""
    own = storage(target) if words.target is not None else None
    for one in tensors_in((words.args, words.kwargs)):
        if one.is_floating_point() and one is not words.target and (own is None or storage(one) != own):
            yield one


class Write(NamedTuple):
    """A call that wrote ``target``, and of that ``part`` alone, where ``prior`` was known of the memory."""

    call: Call
    words: Words
    target: Tensor
    part: Tensor
    prior: Any

    @property
    def whole(self) -> bool:
        """Whether it wrote into all of the memory that the target lies in."""
        return (self.part is not self.target or self.call.name not in PARTIAL) and _is_all(self.part)

    @property
    def own(self) -> bool:
        """Whether it leaves nothing in the part of what stood there before."""
        return self.words.target is None or self.part is not self.target or self.call.name in _FILLS

    @property
    def of_part(self) -> bool:
        """Whether there is more in the memory than what it wrote into."""
        return self.words.target is not None and not _is_all(self.part)

    @property
    def before(self) -> Any:
        """What is known of what it left there of what stood there before, None where it left nothing."""
        return None if self.prior is FINITE or self.own else self.prior


def part_of(call: Call, words: Words, target: Tensor) -> Tensor:
    """Return what of ``target`` the call writes, as far as that is a view: the ``x[3]`` of ``x[3] = 0``."""
    index = words.args[1] if call.name == "__setitem__" and len(words.args) > 1 else None
    parts = index if isinstance(index, tuple) else (index,)
    if index is None or type(target) not in _PLAIN or not all(one is Ellipsis or type(one) in _BASIC for one in parts):
        return target
    try:
        return target.detach()[index]
    except (IndexError, RuntimeError, TypeError):
        return target


def _is_all(part: Tensor) -> bool:
    data = held_of(part)
    return data.nbytes >= data.untyped_storage().nbytes()


def is_given_back(call: Call, words: Words) -> bool:
    """Whether the call lays a tensor over the memory that it lies in."""
    return len(words.args) > 1 and onto_itself(call.name, words.target, words.args[1])


def turned(words: Words, target: Tensor, part: Tensor) -> bool:
    """Whether the call made NaN, or +inf, of masks: what it was given was -inf alone."""
    made = fact(part)
    return bool(made.nan or made.posinf) and not any(
        one.nan or one.posinf for one in (fact(given) for given in given_to(words, target))
    )

"""What stands in for what an update has overwritten: weights, and gradients that it wrote into (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from nandiag.events import Looked, words
from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.memory.there import held_of
from nandiag.runtime.replay.update.counts import Counts

# Stands in for a weight of which nothing is left.
MADE_UP = 0.02
# Stands for each number of other ranks: none that an update is likely to come to 0 by.
_THEIRS = 0.7390851


class Attempt(NamedTuple):
    """What one attempt to make an update again begins from.

    ``size``: what stands in for a bad parameter (None: its size). ``back``: whether counts are set back. ``theirs``
    stands for what other ranks put in. ``blank``: zeros stand in for what is bad of the gradients.
    """

    size: float | None = None
    back: bool = False
    theirs: float = _THEIRS
    blank: bool = False


def attempts(bad: Sequence[Tensor], counts: Counts, *, zeros: bool) -> Iterator[Attempt]:
    """Yield what to begin from, the likeliest first; ``zeros``: the ``bad`` weights may have begun as such.

    What breaks only where others put in 0, or where a gradient that the update has spoilt was 0, is asked for last.
    """
    sizes = (None, 0.0) if zeros else (None,)
    for blank in (False, True) if any(map(is_rewritten, bad)) else (False,):
        for theirs in (_THEIRS, 0.0):
            tries = [Attempt(size=size, theirs=theirs, blank=blank) for size in sizes]
            yield from tries
            if counts.moved:  # as these attempts have shown
                yield from (one._replace(back=True) for one in tries)


def is_rewritten(parameter: Tensor) -> bool:
    """Whether an update, which began with finite gradients, has written bad numbers into that of the parameter."""
    gradient = parameter.grad
    return gradient is not None and held_of(gradient).layout is torch.strided and is_bad(gradient)


def blank_gradients(parameters: Sequence[Tensor]) -> None:
    """Put zeros in the place of the bad numbers that an update has written into gradients, in place."""
    for one in filter(is_rewritten, parameters):
        if one.grad is not None:
            data = held_of(one.grad.detach())
            data[~torch.isfinite(data)] = 0


def by_number(looked: Looked, scalars: dict[str, object]) -> Looked:
    """Say that the gradients are not known where zeros stood in for them, and the op was handed a bad number as well.

    Then the number is what was bad: what it made of the gradients' own values need not be what it makes of zeros.
    """
    numbers = [one for value in scalars.values() if (one := words.as_number(value)) is not None]
    bad = not all(map(math.isfinite, numbers)) or any(one.bad for one in looked.inputs)
    if looked.facts.get("gradients_of_zeros") is not True or not bad:
        return looked
    facts = {name: value for name, value in looked.facts.items() if name != "gradients_of_zeros"}
    inputs = tuple(one if one.bad else replace(one, guessed=True) for one in looked.inputs)
    outputs = tuple(replace(one, guessed=True) for one in looked.outputs)
    return replace(looked, inputs=inputs, outputs=outputs, facts={**facts, "gradients_unknown": True})


def kept_gradient(parameter: Tensor) -> Callable[[], object]:
    """Return what puts the present gradient of a parameter back: the same tensor, with what it holds now."""
    gradient = parameter.grad
    if gradient is None:
        return partial(setattr, parameter, "grad", None)
    return partial(_put_gradient_back, parameter, gradient, gradient.detach().clone())


def _put_gradient_back(parameter: Tensor, gradient: Tensor, value: Tensor) -> None:
    if parameter.grad is not gradient:
        parameter.grad = gradient
    gradient.detach().copy_(value)


def stand_in(parameter: Tensor, size: float | None = None) -> None:
    """Put numbers of its size, or of the ``size`` given, in the place of a parameter's bad elements, in place."""
    data = held_of(parameter.detach())  # nothing here may ask another rank
    if not is_bad(data):
        return
    good = torch.isfinite(data)
    if size is None:
        size = (float(data[good].abs().mean()) if bool(good.any()) else 0.0) or MADE_UP
    data.copy_(torch.where(good, data, torch.full_like(data, size)))


def with_guesses(looked: Looked, guessed: list[bool] | None, *, into: bool) -> Looked:
    """Say which of what the op was given is ``guessed``, and of what came out whether an infinity hangs on that.

    A number over 0 is infinite where the weight itself, had it been 0, had made NaN of it. ``into``: it writes into
    what stood in for bad state.
    """
    looked = _first_unknown(looked) if into else looked
    if guessed is None:
        return looked
    inputs, outputs = looked.inputs, looked.outputs
    if len(guessed) == len(inputs):
        inputs = tuple(
            replace(one, guessed=one.guessed or made_up) for one, made_up in zip(inputs, guessed, strict=True)
        )
    if not any(one.nan for one in outputs):
        outputs = tuple(replace(one, guessed=True) for one in outputs)
    return replace(looked, inputs=inputs, outputs=outputs)


def _first_unknown(looked: Looked) -> Looked:
    """Say that what the op was given first, and writes into, is not known: zeros stood there for it."""
    first = tuple(one if one.bad else replace(one, guessed=True) for one in looked.inputs[:1])
    return replace(looked, inputs=(*first, *looked.inputs[1:]))


def is_lost(parameter: Tensor) -> bool:
    """Whether nothing finite is left of it: what stands in for it has not even its size."""
    data = held_of(parameter.detach())
    return is_bad(data) and not bool(torch.isfinite(data).any())

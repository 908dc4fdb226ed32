"""What an exchange between ranks is on the tape: a call of what this rank put in (worker)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.collectives.own_part import call_again
from nandiag.runtime.leaves import is_leaf
from nandiag.runtime.look.finite import is_bad

# Those of one tensor, which they write into, that can be made again by their arguments.
_OF_ONE = frozenset({"all_reduce", "broadcast", "reduce"})


class Exchanged:
    """A tensor before and after an exchange in place, to be taped as a call: it returns what the ranks made of it.

    Where what this rank gave was bad already it returns that, for then the exchange only passed it on. A weight is
    written into: what the script does to it next it does to the weight.
    """

    def __init__(self, name: str, after: Tensor) -> None:
        self.__name__ = name
        self.after = after

    def __call__(self, before: Tensor) -> Tensor:
        """Return what came out, given what this rank put in; both of any one shape."""
        if is_bad(before):
            return before
        if not is_weight(before):
            return self.after
        with torch.no_grad():
            return before.copy_(self.after)


class Mingled:
    """A gradient, or what is made of gradients, in an exchange in place: this rank alone has only its part of it."""

    def __init__(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.__name__ = f"{name}_"  # named as calls that write in place are
        self._name = name
        self._args, self._kwargs = args[1:], {key: one for key, one in kwargs.items() if key != "tensor"}

    def __call__(self, before: Tensor) -> Tensor:
        """Return this rank's part, of any shape."""
        return before

    @property
    def may_be_made(self) -> bool:
        """Whether all ranks together can make it again."""
        return self._name in _OF_ONE

    def again(self, before: Tensor) -> Tensor:
        """Make it again, together with the other ranks; returns ``before``, written into."""
        call_again(self._name, (before, *self._args), self._kwargs)
        return before


def is_weight(tensor: Tensor) -> bool:
    """Whether it is trained."""
    return is_leaf(tensor) and tensor.requires_grad

"""The weights of one optimizer, looked at by few calls as long as they lie where they do (worker).

Few elements are quickest looked at side by side, more of them tensor by tensor: to copy them takes longer then. What
its groups are told beside the learning rate is asked for at once; only where it changed is anything made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.look.finite import flat, norm_of_flat

_OFTEN_SET = frozenset({"params", "lr"})
_PLAIN = frozenset({float, int, bool, str, type(None)})
_params, _gradient, _address = itemgetter("params"), attrgetter("grad"), Tensor.data_ptr
_TYPES, _LAYOUTS = frozenset({Tensor}), frozenset({torch.strided})
_WIDE = frozenset({torch.float32, torch.float64})
_layout = attrgetter("layout")
_side_by_side, _norm = torch._C._nn.flatten_dense_tensors, torch.linalg.vector_norm


class Trained:
    """Weights, where they lie, and what the numbers in their groups make of the bounds on their state.

    ``decay``, ``first`` and ``second``: the most by which weights come to gradients, and these to the state's bounds.
    """

    __slots__ = ("_are_few", "_get", "_ids", "_lie", "_norm", "_values", "_weights", "decay", "first", "second")

    def __init__(self, optimizer: torch.optim.Optimizer, weights: list[Tensor], *, few: bool) -> None:
        groups = optimizer.param_groups
        names = [name for name, value in groups[0].items() if name not in _OFTEN_SET and _is_plain(value)]
        self._get: Callable[[Any], Any] = itemgetter(*names, *names[:1])  # of one alone no tuple is got
        self._ids, self._weights = list(map(id, weights)), weights
        # Memory that is let go of, or given to a weight anew, has another address: what is held here stays where it is.
        whole = all(one.is_contiguous() for one in weights)
        self._lie = list(map(_address, weights)), [one.detach().view(-1) if whole else one.detach() for one in weights]
        self._are_few = few or not whole
        self._norm = (_norm_of_joined if whole else _norm_of_all) if self._are_few else norm_of_flat
        self._values: list[Any] = []

    def lies_there(self, weights: list[Tensor]) -> bool:
        """Whether these are ``weights``, and lie where they did."""
        return list(map(id, weights)) == self._ids and list(map(_address, weights)) == self._lie[0]

    def is_same(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether ``optimizer`` still trains these, and is told what it was told before."""
        groups = optimizer.param_groups
        try:
            same = list(map(id, chain.from_iterable(map(_params, groups)))) == self._ids
            return same and list(map(self._get, groups)) == self._values
        except (KeyError, TypeError, ValueError, RuntimeError):  # a group lacks one, or has a tensor in its place
            return False

    def renew(self, optimizer: torch.optim.Optimizer, is_plain: Callable[[dict[str, Any]], bool]) -> bool:
        """Take the numbers in the groups as they are now; False where they are not all of these weights, or no bounds.

        ``is_plain`` tells whether bounds hold by the numbers of a group.
        """
        groups = optimizer.param_groups
        same = list(map(id, chain.from_iterable(map(_params, groups)))) == self._ids
        if not same or any(map(_has_list, groups)) or not all(map(is_plain, groups)):
            return False
        try:
            self._values = list(map(self._get, groups))
        except KeyError:
            return False
        own = type(optimizer) is torch.optim.AdamW  # weights decay by themselves, not by way of the gradients
        decays = [0.0 if own or one.get("decoupled_weight_decay") else one["weight_decay"] for one in groups]
        self.decay = float(max(decays))
        self.first = float(sum(1.0 + abs(one.get("dampening", 0.0)) for one in groups))
        self.second = float(sum(map(averages_squares, groups)))
        return True

    def gradients_norm(self) -> float | None:
        """Return the norm of all gradients together; None where one is missing, or not a plain one on the host."""
        gradients: list[Any] = list(map(_gradient, self._weights))
        if not (_TYPES.issuperset(map(type, gradients)) and _LAYOUTS.issuperset(map(_layout, gradients))):
            return None
        # Torch's own update reads each of them next, so that their memory is there.
        if not self._are_few:
            first = gradients[0]
            return norm_of_flat(list(map(flat, gradients))) if first.is_cpu and first.dtype in _WIDE else None
        joined = _side_by_side(gradients)
        return _norm(joined).item() if joined.is_cpu and joined.dtype in _WIDE else None

    def norm(self) -> float | None:
        """Return the norm of all weights together; None where they lie elsewhere by now."""
        addresses, held = self._lie
        return self._norm(held) if list(map(_address, self._weights)) == addresses else None

    def let_go(self) -> None:
        """Whose they were is gone."""
        self._ids, self._weights, self._lie = [0], [], ([0], [])


def averages_squares(group: dict[str, Any]) -> bool:
    """Whether the optimizer of ``group`` keeps averages of squared gradients, as Adam does, and RMSprop."""
    return "betas" in group or "alpha" in group


def _norm_of_joined(vectors: list[Tensor]) -> float:
    return float(_norm(torch.cat(vectors)).item())


def _norm_of_all(tensors: list[Tensor]) -> float:
    return float(_norm(_side_by_side(tensors)).item())


def _has_list(group: dict[str, Any]) -> bool:
    """Whether a number in a group may be changed where it stands."""
    return any(type(value) is list for name, value in group.items() if name != "params")


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(type(one) in _PLAIN for one in value))

"""Ops that torch calls in another way as soon as a dispatch mode is on, run as they are without one (worker).

``ctc_loss`` hands lengths on as tensors then, not as lists. Those lie on the CPU as a rule, beside inputs on a device,
which the op that takes them as tensors refuses, as does the division by them for the mean; cuDNN is not asked in the
same words either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.memory.weakly import Weakly

_LENGTHS = frozenset({"input_lengths", "target_lengths"})
_NATIVE = ("_ctc_loss", "_ctc_loss_backward")
# Whether a library takes the call, and its own op for it.
_LIBRARIES = (("_use_cudnn_ctc_loss", "_cudnn_ctc_loss"), ("_use_miopen_ctc_loss", "miopen_ctc_loss"))


def unmoded(func: Any) -> Callable[..., Any]:
    """Return what to call in the place of an op that came by a dispatch mode: as a rule the op itself."""
    found: Callable[..., Any] = _INSTEAD.get(func, func)
    return found


class _Divisor:
    """The lengths that a loss is divided by next, where they lie on another device than it."""

    def __init__(self) -> None:
        self._of: Callable[[], Tensor | None] = lambda: None
        self._device = torch.device("cpu")

    def expect(self, given: dict[str, Any]) -> None:
        """The loss is computed of what is ``given``."""
        lengths, device = given.get("target_lengths"), given["log_probs"].device
        if isinstance(lengths, Tensor) and lengths.device != device:
            self._of, self._device = Weakly(lengths), device

    def clamped(self, lengths: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return lengths of at least 1; without a mode those of lists are made beside the loss."""
        if self._of() is lengths:
            self._of = lambda: None
            lengths = lengths.to(self._device)
        clamped: Tensor = torch.ops.aten.clamp_min.default(lengths, *args, **kwargs)
        return clamped


_DIVISOR = _Divisor()


def _by_lists(lists: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the overload that takes ``lists`` of lengths."""
    names = [one.name for one in lists._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    _DIVISOR.expect(given)
    return lists(**{name: _listed(word) if name in _LENGTHS else word for name, word in given.items()})


def _listed(word: Any) -> Any:
    return word.tolist() if isinstance(word, Tensor) else word


def _asked(tensors: Any, lists: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a library takes the call: without a mode it is asked a second time, with lists."""
    return bool(tensors(*args, **kwargs) or _by_lists(lists, *args, **kwargs))


def _by_library(asks: Any, tensors: Any, lists: Any, *args: Any, **kwargs: Any) -> Any:
    names = {one.name for one in asks._schema.arguments}
    given = dict(zip((one.name for one in tensors._schema.arguments), args, strict=False)) | kwargs
    takes = asks(**{name: word for name, word in given.items() if name in names})
    return tensors(**given) if takes else _by_lists(lists, **given)


def _overloads(name: str) -> tuple[Any, Any]:
    """Return the overloads of an op that take lengths as tensors and as lists; older torch has not all of them."""
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, "Tensor", None), getattr(packet, "default", None)


def _table() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {
        tensors: partial(_by_lists, lists) for tensors, lists in map(_overloads, _NATIVE)
    }
    for (asks, asks_lists), (tensors, lists) in ((_overloads(one), _overloads(other)) for one, other in _LIBRARIES):
        found[asks] = partial(_asked, asks, asks_lists)
        found[tensors] = partial(_by_library, asks, tensors, lists)
    found.pop(None, None)
    found[torch.ops.aten.clamp_min.default] = _DIVISOR.clamped
    return found


_INSTEAD = _table()

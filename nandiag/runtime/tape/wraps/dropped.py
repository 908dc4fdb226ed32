"""A ``zero_grad`` that was taped (worker)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Dropped:
    """A ``zero_grad`` that can be called again while whose gradients it drops is there."""

    __name__ = "zero_grad"

    def __init__(
        self, original: Callable[..., Any], owner: Callable[[], Any], words: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._original, self._owner, self._words, self._options = original, owner, words, options

    def __call__(self) -> None:
        """Drop them."""
        owner = self._owner()
        if owner is not None:
            self._original(owner, *self._words, **self._options)

    def parameters(self) -> list[Tensor]:
        """Return the parameters, of an optimizer or a module, whose gradients it drops."""
        owner = self._owner()
        if isinstance(owner, nn.Module):
            return list(owner.parameters())
        return [one for group in getattr(owner, "param_groups", ()) for one in group["params"]]

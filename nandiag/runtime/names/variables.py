"""What the script calls the parameters that no live module holds (worker)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from nandiag.runtime.leaves import names_in_script
from nandiag.runtime.memory.weakly import Staying

_TRIES = 8


class Variables:
    """Names of such parameters, looked up a few times at most."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Callable[[], Tensor | None], str]] = {}
        self._tries = _TRIES

    def name(self, tensor: Tensor, beside: Sequence[Tensor]) -> str | None:
        """Return the name of ``tensor``, which is trained with those ``beside`` it."""
        known = self._names.get(id(tensor))
        if (known is None or known[0]() is not tensor) and self._tries > 0:
            self._tries -= 1
            found = names_in_script(beside)
            self._names |= {id(one): (Staying(one), found[id(one)]) for one in beside if id(one) in found}
            known = self._names.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

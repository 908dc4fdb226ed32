"""What of the script's numbers is bad because gradients were that a border has seen bad (worker)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import is_bad, local, quiet
from nandiag.runtime.memory.weakly import Weakly
from nandiag.runtime.tape.packed.nested import tensors_in
from nandiag.runtime.tape.packed.words import base_of

# Of so much memory it is known, and calls are looked at for so long: nothing may be wrong at all.
_MOST, _SECONDS = 4096, 1.0


class _Memory(NamedTuple):
    """Memory that holds bad values, for as long as it is there, and the tensors that were seen to be bad in it."""

    there: StorageWeakRef
    tensors: list[Callable[[], Tensor | None]]

    def bad(self, tensor: Tensor) -> bool:
        """Whether it is bad yet; of ``tensor``, which lies in it, where all others are gone."""
        known = [one for one in (held() for held in self.tensors) if one is not None]
        return any(map(is_bad, known or [base_of(tensor)]))


class Descent:
    """Follows bad gradients through the calls of the loop: from what is made finite nothing bad descends any more."""

    def __init__(self, bad: Iterable[Tensor]) -> None:
        self._known: dict[int, _Memory] = {}
        self._left = _SECONDS
        for one in bad:
            self._take(one)

    def has(self, tensor: Tensor) -> bool:
        """Whether ``tensor``, which is bad, descends from them, as far as is known."""
        key = storage(tensor)
        known = None if key is None else self._known.get(key)
        return known is not None and not known.there.expired()

    @guarded("descent")
    def begins(self, words: Any) -> bool:
        """A call is given ``words``; returns whether any of these descends from the gradients, and is bad by now."""
        return bool(self._look(words, every=False))

    @guarded("descent")
    def ended(self, words: Any, output: Any, *, descends: bool) -> None:
        """It has returned: what it made, or wrote into, descends from what it was given, if it is bad."""
        self._look((output, words), every=descends)

    def _look(self, words: Any, *, every: bool) -> list[Tensor]:
        if self._left <= 0:
            self._known.clear()  # nobody knows any more
        if not self._known:
            return []
        began = time.perf_counter()
        with quiet():
            found = [one for one in tensors_in(words) if self._descends(one, every=every)]
        self._left -= time.perf_counter() - began
        return found

    def _descends(self, tensor: Tensor, *, every: bool) -> bool:
        key = storage(tensor)
        if key is None or not (every or self.has(tensor)):
            return False
        if self.has(tensor):
            if self._known[key].bad(tensor):
                return True
            del self._known[key]
        elif is_bad(tensor):
            self._take(tensor)
            return True
        return False

    def _take(self, tensor: Tensor) -> None:
        data = local(tensor)
        key = storage(tensor)
        if data is None or key is None or len(self._known) >= _MOST:
            return
        if not self.has(tensor):
            self._known[key] = _Memory(StorageWeakRef(data.untyped_storage()), [])
        self._known[key].tensors.append(Weakly(tensor))

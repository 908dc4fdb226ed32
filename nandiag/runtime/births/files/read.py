"""Which memory holds what was read from a file, finite or not: what lies there may be wrong all the same (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.events import Looked
from nandiag.runtime.births.known import Filed
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame
from nandiag.runtime.memory.there import held_of

_MOST = 1 << 14


class FromFiles:
    """The file, the key in it and the line by which each piece of memory was read, until something else writes there.

    What an optimizer, or a module in its own forward, has made of it since is not seen: told is only where the numbers
    came from, not that they are still the same.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Filed, StorageWeakRef]] = {}

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self._known)

    def put(self, tensor: Tensor, filed: Filed) -> None:
        """``tensor`` holds what was read."""
        key = storage(tensor)
        if len(self._known) >= _MOST:
            self._known = {one: held for one, held in self._known.items() if not held[1].expired()}
        if key is not None and len(self._known) < _MOST:
            # The weak reference keeps the address from being given to another storage, not its memory.
            self._known[key] = filed, StorageWeakRef(held_of(tensor).untyped_storage())

    def wrote(self, name: str, args: tuple[Any, ...], target: Tensor) -> None:
        """A call of this name has written into ``target``: a copy of what was read is what was read."""
        if not self._known:
            return
        source = args[1] if name == "copy_" and len(args) > 1 and isinstance(args[1], Tensor) else None
        known = None if source is None else self._known.get(storage(source) or 0)
        if known is None or source is None or source.numel() != target.numel():
            self.forget(target)
        else:
            self.put(target, known[0])

    def forget(self, tensor: Tensor) -> None:
        """Something else has written there."""
        if self._known:
            self._known.pop(storage(tensor) or 0, None)

    def lose(self) -> None:
        """Calls are not seen any more."""
        self._known.clear()

    def told(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, object]:
        """Return, by name, the file, the key in it, and the script's file and line, of what was read of the ``named``.

        The first of them is None where it was no file by its path.
        """
        found = {name: known[0] for name, one in named if (known := self._known.get(storage(one) or 0)) is not None}
        return {"read_from": {name: _told(filed) for name, filed in found.items()}} if found else {}

    def with_state(self, looked: Looked, state: Any) -> Looked:
        """Return ``looked`` with where the ``state`` of a parameter was read, which an optimizer's update used."""
        named = state.items() if isinstance(state, dict) and self else ()
        told = self.told((str(key), one) for key, one in named if isinstance(one, Tensor))
        return replace(looked, facts={**looked.facts, **told}) if told else looked


def _told(filed: Filed) -> list[object]:
    site = site_of(Spot(None, None, tuple(map(Frame._make, filed.call.places)), "init", 0), None)
    return [filed.path, filed.key, site.file, site.line]

"""Buffers and frozen parameters: harm when they turn bad, none when they always were, as masks are (worker)."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.memory.silent import SILENT
from nandiag.runtime.names import walk
from nandiag.runtime.steady.vectors import Vectors

_STATISTICS = frozenset({"running_mean", "running_var"})
_TYPES = frozenset({Tensor, nn.Parameter})
Place = tuple[int, str]
# A mask that is written anew again and again is not looked at each time.
_MOST_MEANT = 64


def _never(_: Tensor) -> bool:
    return False


class Frozen:
    """Buffers and parameters that no optimizer trains: harm when they turn bad, none when they always were (masks).

    The running statistics of a norm in a model that is trained are no masks: they are harm also where loaded bad.
    """

    def __init__(self) -> None:
        self.places: list[tuple[weakref.ref[nn.Module], str, str, str]] = []
        self._version: dict[Place, tuple[int, int, int]] = {}
        self._always: set[Place] = set()
        self._silent: set[Place] = set()
        self._heard = 0
        self._trained: set[int] = set()
        self._meant: Counter[Place] = Counter()
        self._vectors = Vectors()

    def take_stock(self, roots: list[nn.Module], trained: set[int], to_train: Collection[int] = ()) -> None:
        """Find them below ``roots``; those that are bad at their first sight are masks or scratch, and no harm.

        ``trained`` are, by ``id``, the parameters that were updated, ``to_train`` all that an optimizer was given.
        """
        self._trained = trained
        # A parameter that was met before its optimizer was is no place any more.
        self.places = [place for place in self.places if _still_untrained(place, trained)]
        known = {(id(place[0]()), place[1]) for place in self.places}
        for root in roots:
            in_use = any(id(one) in to_train for one in root.parameters())
            for name, module in walk(root):
                for key, what, tensor in _untrained(module, trained):
                    if (id(module), key) not in known:
                        known.add((id(module), key))
                        self.places.append(
                            (weakref.ref(module, self._gone), key, f"{name}.{key}" if name else key, what)
                        )
                        self._first_sight(module, key, tensor, in_use=in_use)

    def trains(self, parameters: Iterable[int]) -> None:
        """These, by ``id``, are trained from now on."""
        self._trained.update(parameters)

    def _first_sight(self, module: nn.Module, key: str, tensor: Tensor, *, in_use: bool) -> None:
        place, is_norm = (id(module), key), isinstance(module, _NormBase)
        self._forget(place)
        self._version[place] = _stamp(tensor)
        if is_norm or tensor in SILENT:
            self._silent.add(place)  # written to without a move of the version
        if is_bad(tensor) and not (in_use and is_norm and key in _STATISTICS):
            self._always.add(place)

    def _forget(self, place: Place) -> None:
        """What was there before lay in a module that is gone, in whose place is another."""
        self._always.discard(place)
        self._silent.discard(place)
        self._meant.pop(place, None)

    def _gone(self, _: object) -> None:
        self._vectors.clear()  # they would keep what a module held that is let go of

    def norms(self) -> list[Tensor]:
        """Return 0-d tensors that are finite only if all that were written to since the last call are."""
        return self._vectors.norms(self.changed())

    def doubt(self) -> None:
        """Take all for written to."""
        self._version.clear()

    def changed(self) -> list[Tensor]:
        """Return those written to since the last call."""
        always, silent = self._always, self._silent
        if self._heard != SILENT.count:
            self._heard = SILENT.count
            silent |= {place for place, tensor in self._now() if tensor in SILENT}
        return [
            tensor
            for place, tensor in self._now()
            if place not in always and (place in silent or self._moved(place, tensor))
        ]

    def _moved(self, place: Place, tensor: Tensor) -> bool:
        before, now = self._version.get(place), _stamp(tensor)
        self._version[place] = now
        return now != before

    def bad(self, is_meant: Callable[[Tensor], bool] = _never) -> list[tuple[str, str, Tensor]]:
        """Return (name, what, tensor) of each that was finite once and is not now; each is told once.

        What is infinite because it is meant so is no harm, and may turn bad later.
        """
        found = []
        names = {(id(ref()), key): (name, what) for ref, key, name, what in self.places}
        for place, tensor in self._now():
            if place not in self._always and is_bad(tensor):
                if is_meant(tensor):
                    self._meant[place] += 1
                    self._always |= {place} if self._meant[place] > _MOST_MEANT else set()
                else:
                    self._always.add(place)
                    found.append((*names[place], tensor))
        return found

    def _now(self) -> Iterator[tuple[Place, Tensor]]:
        for ref, key, _, _ in self.places:
            module = ref()
            if module is None:
                continue
            buffers, own = module._buffers, module._parameters
            if type(buffers) is dict and type(own) is dict:  # nearly always, and this runs for each buffer in each step
                tensor = buffers.get(key)
                tensor = own.get(key) if tensor is None else tensor
            else:
                tensor = _at(module, key)
            if tensor is not None and id(tensor) not in self._trained:
                yield (id(module), key), tensor


def _still_untrained(place: tuple[weakref.ref[nn.Module], str, str, str], trained: set[int]) -> bool:
    module = place[0]()
    return module is not None and id(_at(module, place[1])) not in trained


def _at(module: nn.Module, key: str) -> Tensor | None:
    tensor = _held(module._buffers, key)
    return _held(module._parameters, key) if tensor is None else tensor


def _held(tensors: Any, key: str) -> Tensor | None:
    # A scripted module's buffers and parameters lie in no dict, but in what can only list them.
    return tensors.get(key) if isinstance(tensors, dict) else dict(tensors.items()).get(key)


def _untrained(module: nn.Module, trained: set[int]) -> Iterator[tuple[str, str, Tensor]]:
    for what, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
        for key, tensor in tensors.items():
            if tensor is not None and tensor.is_floating_point() and id(tensor) not in trained:
                yield key, "frozen" if what == "parameter" else what, tensor


def _stamp(tensor: Tensor) -> tuple[int, int, int]:
    """Return what changes when ``tensor`` is replaced, written into, or given other memory (``p.data = value``)."""
    try:
        address = tensor.data_ptr() if type(tensor) in _TYPES else 0  # a fake one would warn
    except RuntimeError:  # a sparse one has none
        address = 0
    return id(tensor), 0 if tensor.is_inference() else tensor._version, address

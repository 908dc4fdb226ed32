"""What a sharded checkpoint does not hold of the tensors that it was asked to fill, as its planner knows (worker).

A planner that allows a partial load leaves these as they were, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nandiag.runtime.births.known import Call
from nandiag.runtime.frames import Frame, best
from nandiag.runtime.memory.there import held_of, storage_of

_MOST, _MOST_KEYS = 256, 1 << 16
# By these a planner says what it looks for, and where it puts that.
_LOOKS = ("create_local_plan", "create_global_plan", "finish_plan", "lookup_tensor", "resolve_tensor")


class Passed(NamedTuple):
    """A tensor that a load passed over: its key, the file, and the call that loaded."""

    memory: StorageWeakRef
    key: str
    path: str
    call: Call


class Missing:
    """Such tensors by the memory that they lie in."""

    def __init__(self) -> None:
        self._passed: dict[int, Passed] = {}

    def loaded(self, planner: Any, path: str, call: Call) -> tuple[set[int], set[int]]:
        """Note what the load by ``planner`` has passed over; returns the memory of these tensors, and of which it may.

        A planner of the script's own may look for a tensor under another name.
        """
        passed = dict(_without(planner))
        if not _is_as_torchs(planner):
            return set(), set(passed)
        for key, (name, tensor) in passed.items():
            if len(self._passed) < _MOST:
                memory = StorageWeakRef(held_of(tensor).untyped_storage())
                self._passed[key] = Passed(memory, name, path, call)
        return set(passed), set()

    def of(self, tensor: Tensor) -> dict[str, object]:
        """Return the facts of the load that has passed over ``tensor``; none where it was filled, or not asked for."""
        known = self._passed.get(storage_of(tensor)) if self._passed else None
        if known is None or known.memory.expired():
            return {}
        frame = best(tuple(map(Frame._make, known.call.places)))
        at = {} if frame is None else {"passed_over_at": [frame.file, frame.line]}
        return {"missing_key": known.key, "missing_in": known.path, **at}


def _is_as_torchs(planner: Any) -> bool:
    """Whether it looks for each tensor as torch's own does, which the script's may do that descends from it."""
    methods = [getattr(type(planner), name, None) for name in _LOOKS]
    return all((getattr(one, "__module__", None) or "torch.").startswith("torch.") for one in methods)


def _without(planner: Any) -> Iterator[tuple[int, tuple[str, Tensor]]]:
    """Yield what the checkpoint does not hold by the planner's keys, all flat; of tied weights one key is enough."""
    asked, held = getattr(planner, "state_dict", None), getattr(planner, "metadata", None)
    known = getattr(held, "state_dict_metadata", None)
    if isinstance(asked, dict) and isinstance(known, dict) and len(asked) <= _MOST_KEYS:
        named = [(str(key), one) for key, one in asked.items() if isinstance(one, Tensor) and one.device.type != "meta"]
        filled = {storage_of(one) for key, one in named if key in known}
        yield from ((storage_of(one), (key, one)) for key, one in named if storage_of(one) not in filled)

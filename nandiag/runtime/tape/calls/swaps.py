"""The tensors that ``functional_call`` puts in the place of a module's own for one call (worker).

``torch.func.functional_call`` and ``torch.nn.utils.stateless.functional_call`` both come by one function of torch's.
It is not wrapped, for dynamo traces it: it is known by its frame, which the module is called from.
"""

from __future__ import annotations

import contextlib
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import stateless

_code = getattr(getattr(stateless, "_functional_call", None), "__code__", None)
# The code that calls a module with them; None where this torch has it elsewhere.
SWAPS = _code
_swap = getattr(stateless, "_reparametrize_module", None)


class Swapped(NamedTuple):
    """What the module had during the call, by name, and how: tensors when it is called, words once on the tape."""

    tensors: dict[str, Any]
    tie_weights: bool
    strict: bool

    def within(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Give ``module`` these tensors for a time."""
        # What torch writes back into the mapping is not for ours.
        swap: Any = _swap
        within: contextlib.AbstractContextManager[Any] = swap(
            module, dict(self.tensors), tie_weights=self.tie_weights, strict=self.strict
        )
        return within


def swapped_by(frame: FrameType | None, module: nn.Module) -> Swapped | None:
    """Return what was put into ``module`` if the ``frame`` that calls it is that of ``functional_call``."""
    if frame is None or _code is None or _swap is None or frame.f_code is not _code:
        return None
    names = frame.f_locals
    tensors = names.get("parameters_and_buffers")
    if names.get("module") is not module or not isinstance(tensors, dict):
        return None
    named = {name: one for name, one in tensors.items() if isinstance(one, Tensor)}
    return Swapped(named, bool(names.get("tie_weights", True)), bool(names.get("strict", False)))

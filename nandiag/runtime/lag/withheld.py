"""A sentinel whose host waits for no look on a device where the device itself can leave an update out (worker).

Torch's fused updates take a flag on the device, ``found_inf``, under which they change nothing; a GradScaler tells them
so of gradients that overflowed. Here it is raised where any number of the look before the update is not finite. The
host launches the update and reads the numbers while the device makes it; where one is not finite the step is judged,
and run again, with weights and state as they were, and where the run goes on the update is made then.
"""

from __future__ import annotations

import inspect
import math
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.sight import Gathered, gather
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.steady.assured import is_hooked
from nandiag.runtime.steady.borders import STOCK
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.response import Level
from nandiag.runtime.watch.sentinel import Sentinel

# Torch's updates that know the flag. Their first ones make the state that the next ones go on with.
_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_FIRST = 3
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# To raise a flag costs the host a quarter of a millisecond: less than this it need not save. Measured every so often.
_WAIT, _EACH = 0.5e-3, 32
# A run in which the flag is raised, and nothing is harm, would make each such update twice.
_IN_VAIN = 3
_on_device, _version = attrgetter("is_cuda"), attrgetter("_version")
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


class Withheld(NamedTuple):
    """An update under way that the device leaves out if a number of its look, which is ``sent``, is not finite.

    ``versions``: those of the ``tensors`` that it writes into.
    """

    border: Border
    gathered: Gathered
    sent: Sent
    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    def put_back(self) -> None:
        """Have the tensors count no write: nothing was written into them."""
        with torch.no_grad():
            torch._C._autograd._unsafe_set_version_counter(self.tensors, self.versions)


class WithholdingSentinel(Sentinel):
    """Looks at each border as its parent does; where it pays, it judges behind the update what it saw before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._withheld: Withheld | None = None
        self._flagged: Callable[[], Optimizer | None] = lambda: None
        self._pays, self._count, self._in_vain = False, -1, 0

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        self._lower()
        if closure or not self._may_withhold(optimizer) or not attach_late():
            super()._border(optimizer, closure=closure)
            return
        self._count += 1
        if self._count % _EACH and not self._pays:
            super()._border(optimizer)
            return
        with quiet():
            border = self.judge.begin(optimizer)
            gathered = gather(*self._looked_at(optimizer))
            sent = Sent(gathered.scalars)
            if self._count % _EACH and (column := sent.column) is not None:
                self._raise_flag(optimizer, column)
                tensors = tuple(_written(optimizer))
                self._withheld = Withheld(border, gathered, sent, tensors, tuple(map(_version, tensors)))
                return
            self._take(optimizer, gathered.sight(self._timed(sent)), border)
        self._settle(optimizer, border)

    def _timed(self, sent: Sent) -> list[float]:
        """Wait for the numbers; whether that takes so long that to go on meanwhile pays is known from then on."""
        began = time.perf_counter()
        values = sent.take()
        self._pays = time.perf_counter() - began > _WAIT
        return values

    def _raise_flag(self, optimizer: Optimizer, column: Tensor) -> None:
        # Nothing times 0 is 0, but for what is not finite.
        optimizer.found_inf = column.mul(0).sum().ne(0).to(torch.float32)  # type: ignore[attr-defined]
        self._flagged = weakref.ref(optimizer)

    def _lower(self) -> None:
        """Take the flag away, also from an update that raised an error."""
        flagged, self._flagged, self._withheld = self._flagged(), lambda: None, None
        if flagged is not None:
            vars(flagged).pop("found_inf", None)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge what was seen before an update that went on meanwhile, then do what is done behind each."""
        withheld = self._withheld
        if withheld is not None and self._flagged() is optimizer:
            self._lower()
            self._judge_behind(optimizer, withheld)
        super().after_step(optimizer, args, kwargs)

    def _judge_behind(self, optimizer: Optimizer, withheld: Withheld) -> None:
        values = withheld.sent.take()
        left_out = not all(map(math.isfinite, values))
        with _made_in_the_end(optimizer, lambda: left_out and not self._under_way.hides):
            if left_out:
                withheld.put_back()
            with quiet():
                self._take(optimizer, withheld.gathered.sight(values), withheld.border)
            self._in_vain += left_out and withheld.border.level is Level.NONE
            self._settle(optimizer, withheld.border)

    def _may_withhold(self, optimizer: Optimizer) -> bool:
        """Whether the update is torch's own and fused, and whatever may be asked of the step is asked of its look."""
        capture, looker, weights = self.capture, self.looker, self.weights
        return (
            type(optimizer) in _KINDS
            and all(group["fused"] for group in optimizer.param_groups)
            and self._in_vain < _IN_VAIN
            and weights.newest() is optimizer
            and self.clock.updates(optimizer) > _FIRST
            and self.clock.step not in STOCK
            and not (
                self._scale is not None
                or hasattr(optimizer, "found_inf")
                or hasattr(optimizer, "grad_scale")
                or optimizer._optimizer_step_post_hooks
                or is_hooked()
                or self.losses.dropped
                or self.judge.lost
                or capture.tracer is not None
                or capture.window.numbers
                or capture.window.stored
                or (capture.births is not None and capture.births.read)
                or looker.live.started
                or looker.modules is not None
                or looker.seeks
                or _stacked()
                or _dispatched()
                or (self.agreement.possible and self._wants_company(optimizer))
            )
            and _are_there(parameters(optimizer))
        )


def _are_there(weights: list[Tensor]) -> bool:
    return all(map(_on_device, weights)) and _PLAIN.issuperset(map(type, weights))


def _written(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield what torch counts a write into: weights and, by its declaration, their gradients."""
    for one in parameters(optimizer):
        if one.grad is not None:
            yield one
            yield one.grad


@contextmanager
def _made_in_the_end(optimizer: Optimizer, is_due: Callable[[], bool]) -> Iterator[None]:
    """Make the update that was left out, unless the run is stopped: also where a fault of ours comes between."""
    try:
        yield
    except Exception:
        _make(optimizer, is_due)
        raise
    _make(optimizer, is_due)


def _make(optimizer: Optimizer, is_due: Callable[[], bool]) -> None:
    if is_due():
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)

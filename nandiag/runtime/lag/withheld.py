"""A sentinel whose host waits for no look on a device where the device itself can leave an update out (worker).

Torch's fused updates take a flag on the device, ``found_inf``, under which they change nothing; a GradScaler tells them
so of gradients that overflowed. Here it is raised where any number of the look before the update is not finite. The
host launches the update and reads the numbers while the device makes it; where one is not finite the step is judged,
and run again, with weights and state as they were, and where the run goes on the update is made then.
"""

from __future__ import annotations

import math
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.frames import TORCH, is_ours, kind_of
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.sight import Gathered, gather
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.steady.assured import is_hooked
from nandiag.runtime.steady.borders import STOCK
from nandiag.runtime.tape.wraps.owed import CALLS
from nandiag.runtime.tracebacks import pass_on
from nandiag.runtime.watch.judge import Border
from nandiag.runtime.watch.response import Level
from nandiag.runtime.watch.sentinel import Sentinel

# Torch's updates that know the flag, and can be made anew when one was left out: not so SGD's, whose first one makes
# its momentum of memory that nothing has written.
_KINDS = (torch.optim.Adam, torch.optim.AdamW)
_FIRST, _MOST_LAYERS = 3, 16
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# A run in which the flag is raised, and nothing is harm that ends it, would make each such update twice.
_IN_VAIN = 3
_on_device = attrgetter("is_cuda")
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


class Withheld:
    """An update that the device leaves out where a number of its look, which is ``sent`` to the host, is not finite.

    It is what the call of the optimizer's ``step`` owes: at its end at the latest the flag is taken away, and what was
    left out, and not refused, is made.
    """

    def __init__(self, optimizer: Optimizer, border: Border, gathered: Gathered, updated: Optimizer) -> None:
        self.optimizer, self.border, self.gathered, self.updated = optimizer, border, gathered, updated
        self.sent = Sent(gathered.scalars)
        self.failed: BaseException | None = None
        self._begun = self._is_made = False

    def begins(self, column: Tensor) -> None:
        """The update is about to be made; ``column``: the numbers of its look as a vector where they lie."""
        flag = column.mul(0).sum().ne(0).to(torch.float32)  # 0 times what is not finite is NaN
        self.optimizer.found_inf = flag  # type: ignore[attr-defined]
        self._begun = True

    def ended(self) -> None:
        """The update was launched: the flag has done its work."""
        vars(self.optimizer).pop("found_inf", None)

    def was_left_out(self) -> bool:
        """Whether the device has left it out; waits for the numbers, not for the update."""
        return not all(map(math.isfinite, self.sent.take()))

    def make(self) -> None:
        """Make what was left out, once; an error of it is the script's, which would have got it from the update."""
        if not self._begun or self._is_made or not self.was_left_out():
            return
        self._is_made = True
        try:
            with torch.no_grad():
                _bare(self.optimizer)(self.optimizer)
        except Exception as error:
            pass_on(error)
            self.failed = error

    def settle(self, *, returned: bool) -> BaseException | None:
        """Make what was left out, unless the update raised an error, or the run is being stopped."""
        self.ended()
        if returned:
            self.make()
        return self.failed


class WithholdingSentinel(Sentinel):
    """Looks at each border as its parent does; of a fused update it judges behind it what it saw before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._in_vain = 0

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        call = None if closure else CALLS.of(optimizer)
        if call is None or not self._may_withhold(optimizer) or not attach_late():
            super()._border(optimizer, closure=closure)
            return
        with quiet():
            self.behind.comes(optimizer, closure=closure)
            border, gathered = self.judge.begin(optimizer), gather(*self._looked_at(optimizer))
            withheld = Withheld(optimizer, border, gathered, self._waiting.of(optimizer))
            if withheld.sent.column is not None:
                call.due = withheld
                return
            self._take(optimizer, gathered.sight(withheld.sent.take()), border, withheld.updated)
        self._settle(optimizer, border)
        self.behind.look(optimizer, border)

    def _goes_on(self, optimizer: Optimizer) -> None:
        withheld = _owed(optimizer)
        if withheld is not None and (column := withheld.sent.column) is not None:
            with quiet():
                withheld.begins(column)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge what was seen before an update that went on meanwhile, then do what is done behind each."""
        withheld = _owed(optimizer)
        if withheld is not None:
            withheld.ended()
            self._judge_behind(withheld)
            withheld.make()
            if withheld.failed is not None:
                return  # the wrap of the step raises it
        super().after_step(optimizer, args, kwargs)
        if self.early.unchanged.probe is not None:
            self.early.unchanged.updated(optimizer)

    def _judge_behind(self, withheld: Withheld) -> None:
        """Judge; where that ends in an error of ours, or is not come to, the update is made all the same."""
        optimizer, border = withheld.optimizer, withheld.border
        with quiet():
            self._take(optimizer, withheld.gathered.sight(withheld.sent.take()), border, withheld.updated)
            self._in_vain += border.level < Level.DOOMED and withheld.was_left_out()
        self._settle(optimizer, border)

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
            and self._response.policy != "skip"
            and not (
                self._scale is not None
                or hasattr(optimizer, "found_inf")
                or hasattr(optimizer, "grad_scale")
                or optimizer._optimizer_step_post_hooks
                or is_hooked()
                or self.losses.dropped
                or self.judge.lost
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
            and not any(map(_is_refused, parameters(optimizer)))
            and _is_torchs(optimizer)
        )


def _are_there(weights: list[Tensor]) -> bool:
    return all(map(_on_device, weights)) and _PLAIN.issuperset(map(type, weights))


def _is_refused(weight: Tensor) -> bool:
    """Whether torch's update raises an error of its gradient, when it has made a part by then."""
    gradient = weight.grad
    return gradient is not None and gradient.layout is not torch.strided


def _owed(optimizer: Optimizer) -> Withheld | None:
    call = CALLS.of(optimizer)
    return call.due if call is not None and isinstance(call.due, Withheld) else None


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether nobody but torch and we has a part in its update: what is made behind it would be made too early."""
    layers = _layers(optimizer)
    if not all(isinstance(one, FunctionType) and _is_known(one.__code__.co_filename) for one in layers):
        return False
    bare = layers[-1]
    whole = not hasattr(bare, "__wrapped__") and bare.__name__ == "step" and "_init_group" not in vars(optimizer)
    return whole and all(map(_is_of_torch, (bare, type(optimizer)._init_group, *_called_by(bare))))  # type: ignore[attr-defined]


def _called_by(update: FunctionType) -> list[Any]:
    """Return what the update finds in its module, by the names it has there."""
    found = map(update.__globals__.get, update.__code__.co_names)
    return [one for one in found if callable(one)]


def _is_of_torch(function: Any) -> bool:
    return isinstance(function, FunctionType) and kind_of(function.__code__.co_filename) == TORCH


def _is_known(filename: str) -> bool:
    return is_ours(filename) or kind_of(filename) == TORCH


def _layers(optimizer: Optimizer) -> list[Any]:
    layers: list[Any] = [type(optimizer).step]
    while (within := getattr(layers[-1], "__wrapped__", None)) is not None and len(layers) < _MOST_LAYERS:
        layers.append(within)
    return layers


def _bare(optimizer: Optimizer) -> Any:
    """Return the update below all hooks and wraps."""
    return _layers(optimizer)[-1]

"""A sentinel whose host waits for no look on a device where the device itself can leave an update out (worker).

Torch's fused updates take a flag on the device, ``found_inf``, under which they change nothing; a GradScaler tells them
so of gradients that overflowed. Here it is raised where any number of the look before the update is not finite. The
host launches the update and reads the numbers while the device makes it; where one is not finite the step is judged,
and run again, with weights and state as they were, and where the run goes on the update is made then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.frames import LIBRARY, USER, kind_of
from nandiag.runtime.inject.late import attach_late
from nandiag.runtime.lag.transfer import Sent
from nandiag.runtime.look.finite import quiet
from nandiag.runtime.look.sight import Gathered, gather
from nandiag.runtime.look.weights import Optimizer, parameters
from nandiag.runtime.steady.assured import is_hooked
from nandiag.runtime.steady.borders import STOCK
from nandiag.runtime.tape.wraps.owed import OWED
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

    However it goes on, it is settled when the ``step`` of the optimizer is over: the flag is taken away, and what was
    left out, and not refused, is made.
    """

    def __init__(self, optimizer: Optimizer, border: Border, gathered: Gathered, sent: Sent) -> None:
        self.optimizer, self.border, self.gathered, self.sent = optimizer, border, gathered, sent

    def begins(self, column: Tensor) -> None:
        """The update is about to be made; ``column``: the numbers of its look as a vector where they lie."""
        flag = column.mul(0).sum().ne(0).to(torch.float32)  # 0 times what is not finite is NaN
        OWED.due[id(self.optimizer)] = self
        self.optimizer.found_inf = flag  # type: ignore[attr-defined]

    def ended(self) -> None:
        """The update was launched: the flag has done its work."""
        vars(self.optimizer).pop("found_inf", None)

    def was_left_out(self) -> bool:
        """Whether the device has left it out; waits for the numbers, not for the update."""
        return not all(map(math.isfinite, self.sent.take()))

    def settle(self, *, returned: bool) -> None:
        """Make what was left out, unless the update raised an error, or the run is being stopped."""
        self.ended()
        if returned and self.was_left_out():
            with torch.no_grad():
                _bare(self.optimizer)(self.optimizer)


class WithholdingSentinel(Sentinel):
    """Looks at each border as its parent does; of a fused update it judges behind it what it saw before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._withheld: Withheld | None = None  # from the look before an update until that begins
        self._in_vain = 0

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        self._withheld = None
        if closure or not self._may_withhold(optimizer) or not attach_late():
            super()._border(optimizer, closure=closure)
            return
        with quiet():
            border, gathered = self.judge.begin(optimizer), gather(*self._looked_at(optimizer))
            sent = Sent(gathered.scalars)
            if sent.column is not None:
                self._withheld = Withheld(optimizer, border, gathered, sent)
                return
            self._take(optimizer, gathered.sight(sent.take()), border)
        self._settle(optimizer, border)

    def _goes_on(self) -> None:
        withheld, self._withheld = self._withheld, None
        if withheld is not None and (column := withheld.sent.column) is not None:
            with quiet():
                withheld.begins(column)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge what was seen before an update that went on meanwhile, then do what is done behind each."""
        withheld = OWED.due.get(id(optimizer))
        if isinstance(withheld, Withheld):
            withheld.ended()
            self._judge_behind(withheld)
            OWED.over(optimizer, returned=True)
        super().after_step(optimizer, args, kwargs)

    def _judge_behind(self, withheld: Withheld) -> None:
        """Judge; where that ends in an error of ours, or is not come to, the update is made all the same."""
        optimizer, border = withheld.optimizer, withheld.border
        with quiet():
            self._take(optimizer, withheld.gathered.sight(withheld.sent.take()), border)
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
            and capture.in_step > 0  # by our wrap of its step, at whose end all is settled
            and self._response.policy != "skip"
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
            and _is_torchs(optimizer)
        )


def _are_there(weights: list[Tensor]) -> bool:
    return all(map(_on_device, weights)) and _PLAIN.issuperset(map(type, weights))


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether nobody but torch and we has a part in its update: what is made behind it would be made too early."""
    codes = [one.__code__.co_filename for one in _layers(optimizer) if hasattr(one, "__code__")]
    return not {USER, LIBRARY}.intersection(map(kind_of, codes)) and "_init_group" not in vars(optimizer)


def _layers(optimizer: Optimizer) -> list[Callable[..., Any]]:
    layers: list[Callable[..., Any]] = [type(optimizer).step]
    while (within := getattr(layers[-1], "__wrapped__", None)) is not None and len(layers) < _MOST_LAYERS:
        layers.append(within)
    return layers


def _bare(optimizer: Optimizer) -> Callable[..., Any]:
    """Return the update below all hooks and wraps."""
    return _layers(optimizer)[-1]

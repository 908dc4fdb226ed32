"""A sentinel whose host waits for no look on a device where the device itself can leave an update out (worker).

Torch's fused updates take a flag on the device, ``found_inf``, under which they change nothing; a GradScaler tells them
so of gradients that overflowed. Here it is raised where any number of the look before the update is not finite. The
host launches the update and reads the numbers while the device makes it; where one is not finite the step is judged,
and run again, with weights and state as they were, and where the run goes on the update is made then.
"""

from __future__ import annotations

import inspect
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

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

# Torch's updates that know the flag, and can be made anew when one was left out: not so SGD's, whose first one makes
# its momentum of memory that nothing has written. What is wrapped in them is found by the name that torch gives it.
_KINDS = (torch.optim.Adam, torch.optim.AdamW)
_HOME = "torch.optim.adam"
_FIRST = 3
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# A run in which the flag is raised, and nothing is harm, would make each such update twice.
_IN_VAIN = 3
_on_device = attrgetter("is_cuda")
_stacked, _dispatched = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


class Withheld(NamedTuple):
    """An update under way that the device leaves out if a number of its look, which is ``sent``, is not finite.

    ``versions``: how often what torch counts a write into was written into, weights and, by declaration, gradients.
    """

    border: Border
    gathered: Gathered
    sent: Sent
    versions: _unsafe_preserve_version_counter

    def put_back(self) -> None:
        """Have no write be counted: there was none."""
        self.versions.__exit__(None, None, None)


class _UnderWay(threading.local):
    """The update that is under way, and the optimizer whose flag is raised; each thread that trains has its own."""

    def __init__(self) -> None:
        self.withheld: Withheld | None = None
        self._flagged: Callable[[], Optimizer | None] = lambda: None

    def begins(self, optimizer: Optimizer, withheld: Withheld, flag: Tensor) -> None:
        """An update is about to be made that does nothing where the ``flag``, a 0-d one in float32, is 1."""
        self.withheld, self._flagged = withheld, weakref.ref(optimizer)
        optimizer.found_inf = flag  # type: ignore[attr-defined]

    def ends(self) -> Withheld | None:
        """Take the flag away, also from an update that raised an error; returns what was withheld under it."""
        withheld, self.withheld = self.withheld, None
        if withheld is not None and (flagged := self._flagged()) is not None:
            vars(flagged).pop("found_inf", None)
        return withheld


class WithholdingSentinel(Sentinel):
    """Looks at each border as its parent does; of a fused update it judges behind it what it saw before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._made_meanwhile = _UnderWay()
        self._in_vain = 0

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look as the parent does; where a fault of ours ends that, nobody would make an update that was left out."""
        try:
            return super().before_step(optimizer, args, kwargs)
        except BaseException:
            self._made_meanwhile.ends()
            raise

    def _border(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        self._made_meanwhile.ends()
        if closure or not self._may_withhold(optimizer) or not attach_late():
            super()._border(optimizer, closure=closure)
            return
        with quiet():
            border, looked_at = self.judge.begin(optimizer), self._looked_at(optimizer)
            gathered = gather(*looked_at)
            sent = Sent(gathered.scalars)
            if (column := sent.column) is not None:
                versions = _unsafe_preserve_version_counter((*parameters(optimizer), *looked_at[1]))
                withheld = Withheld(border, gathered, sent, versions)
                self._made_meanwhile.begins(optimizer, withheld, _flag_of(column))
                return
            self._take(optimizer, gathered.sight(sent.take()), border)
        self._settle(optimizer, border)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Judge what was seen before an update that went on meanwhile, then do what is done behind each."""
        withheld = self._made_meanwhile.ends() if self.nesting.depth == 1 else None
        if withheld is not None:
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
            and _bare(type(optimizer)).__module__ == _HOME
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


def _bare(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """Return the update below all hooks and wraps."""
    update: Callable[[Optimizer], Any] = inspect.unwrap(kind.step)
    return update


def _are_there(weights: list[Tensor]) -> bool:
    return all(map(_on_device, weights)) and _PLAIN.issuperset(map(type, weights))


def _flag_of(column: Tensor) -> Tensor:
    """Return 1 where any of the numbers is not finite, else 0, in float32 where they lie."""
    return column.mul(0).sum().ne(0).to(torch.float32)  # 0 times what is not finite is NaN


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
            _bare(type(optimizer))(optimizer)

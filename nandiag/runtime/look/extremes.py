"""The least and the greatest value of tensors, worked out where they lie and brought to the host together (worker).

One small kernel a tensor; the host is read once, by :meth:`Extremes.read`, at a step border. What lies on the CPU is
there already and is known at once. There the two take two passes over memory; that all is finite is told by one.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import torch
from torch import Tensor

from nandiag.events import TensorFact
from nandiag.runtime.look.finite import extent, fact, local, norm_of
from nandiag.runtime.memory.there import is_there
from nandiag.runtime.memory.weakly import Weakly

_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_MOST_WAITING = 1 << 15
_MOST_FACTS = 32
# From so many elements on a second pass over memory is felt; half precision is too narrow for a norm of its own.
LARGE = 1 << 13
_WIDE = frozenset({torch.float32, torch.float64})
GREW = 1.5


class Look:
    """What is known of one tensor's values: ``low`` and ``high``, NaN both where any element is, NaN until read too.

    ``norm`` is the 2-norm of a large one on the CPU, or the ``limit`` that bounds it where no element was read; it may
    be all that is known. ``fact`` is on the whole tensor where it was bad and still there when that was found out.
    """

    __slots__ = ("device", "dtype", "fact", "high", "known", "limit", "low", "norm", "numel", "of", "shape", "version")

    def __init__(self, tensor: Tensor, limit: float | None = None) -> None:
        self.low = self.high = math.nan
        self.known = False
        self.norm = self.limit = limit
        self.fact: TensorFact | None = None
        self.dtype, self.shape, self.numel, self.device = tensor.dtype, tensor.shape, tensor.numel(), tensor.device
        self.of = Weakly(tensor)
        self.version = 0 if tensor.is_inference() else tensor._version

    @property
    def finite(self) -> bool:
        """Whether every element is finite; True while it is not known."""
        return not self.known or (math.isfinite(self.low) and math.isfinite(self.high))

    @property
    def masked(self) -> bool:
        """Whether the one thing that is not finite in it is -inf, as in a mask."""
        return self.low == -math.inf and self.high != math.inf

    @property
    def absmax(self) -> float | None:
        """The largest magnitude, None where an element is not finite or nothing is known yet."""
        return max(abs(self.low), abs(self.high)) if self.known and self.finite else None

    @property
    def bound(self) -> float:
        """What the 2-norm cannot exceed, by its limit where it has one; infinite where that is not known."""
        if self.limit is not None and self.finite:
            return self.limit
        if self.norm is not None:
            return self.norm
        return math.inf if self.absmax is None else self.absmax * math.sqrt(self.numel)

    def exceeds(self, usual: float) -> bool:
        """Whether the norm is known, and is not finite or far above the ``usual``."""
        return self.norm is not None and not (math.isfinite(self.norm) and self.norm <= GREW * usual)

    def is_of(self, tensor: Tensor) -> bool:
        """Whether this look is at the values that ``tensor`` holds now."""
        return self.of() is tensor and self.version == (0 if tensor.is_inference() else tensor._version)

    def told(self, name: str | None = None) -> TensorFact:
        """Return what is known as a fact: counts where the tensor could still be counted, else its extremes."""
        if self.fact is not None:
            return replace(self.fact, name=name)
        nan = math.isnan(self.low)
        return TensorFact(
            dtype=str(self.dtype).removeprefix("torch."), shape=tuple(self.shape), numel=self.numel,
            nan=int(nan and self.known), posinf=int(self.high == math.inf), neginf=int(self.low == -math.inf),
            min=self.low if math.isfinite(self.low) else None, max=self.high if math.isfinite(self.high) else None,
            absmax=self.absmax, device=str(self.device), name=name, counted=self.finite,
        )  # fmt: skip


class Extremes:
    """Looks at tensors without waiting for them; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Look, Tensor, Tensor]] = []
        self._facts = 0

    def look(self, tensor: Tensor, usual: float | None = None) -> Look | None:
        """Take the extremes of ``tensor`` where it lies; None where it holds no floating-point values on this rank.

        ``usual``: a 2-norm; of a large tensor on the CPU whose own is not far above it no more is made sure of than
        that it is finite.
        The caller keeps autograd and modes off (:class:`nandiag.runtime.look.finite.quiet`).
        """
        data = _values(tensor)
        if data is None:
            return None
        look = Look(tensor)
        if usual is not None and look.numel >= LARGE and data.is_cpu and data.dtype in _WIDE:
            look.norm = norm_of(data).item()
            if not look.exceeds(usual):
                return look
        return look if self._measure(look, data) else None

    def measure(self, look: Look) -> None:
        """Take the extremes of a tensor of which only the norm is known, where it still is what it was."""
        tensor = look.of()
        data = None if look.known or look.norm is None or tensor is None or not look.is_of(tensor) else _values(tensor)
        if data is not None:
            self._measure(look, data)

    def _measure(self, look: Look, data: Tensor) -> bool:
        low, high = extent(data)
        if low.device.type == "cpu":
            self._settle(look, low.item(), high.item())
            return True
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                return False
            self._waiting.append((look, low, high))
        return True

    def read(self) -> None:
        """Bring what waits to the host, by one transfer a device, and forget how many facts were taken."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        groups: dict[torch.device, list[tuple[Look, Tensor, Tensor]]] = {}
        for one in waiting:
            groups.setdefault(one[1].device, []).append(one)
        for group in groups.values():
            ends = torch.stack([end.to(torch.float32) for _, low, high in group for end in (low, high)]).tolist()
            for (look, _, _), low, high in zip(group, ends[::2], ends[1::2], strict=True):
                self._settle(look, low, high)
        self._facts = 0

    def _settle(self, look: Look, low: float, high: float) -> None:
        look.low, look.high, look.known = low, high, True
        if look.finite or look.masked or self._facts >= _MOST_FACTS:
            return
        tensor = look.of()
        if tensor is not None and look.is_of(tensor):
            self._facts += 1
            look.fact = fact(tensor)


def _values(tensor: Tensor) -> Tensor | None:
    """Return the values to look at; the usual case without the questions that the unusual ones need."""
    if type(tensor) in _PLAIN_TYPES and tensor.dtype in _PLAIN and tensor.layout is torch.strided:
        return tensor if tensor.numel() and tensor.device.type != "meta" and is_there(tensor) else None
    try:
        return local(tensor)
    except (RuntimeError, NotImplementedError):
        return None

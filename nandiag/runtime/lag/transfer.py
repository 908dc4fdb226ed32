"""Numbers on their way from a device to the host, which does not wait for them (worker)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from nandiag.runtime.look.finite import column_of

_on_host = attrgetter("is_cpu")


class Sent:
    """0-d tensors on their way to the host: nothing waits for a device but :meth:`take`, for copies long begun."""

    def __init__(self, scalars: Sequence[Tensor]) -> None:
        self._count = len(scalars)
        self._values: dict[int, float] = {}
        self._copies: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
        self.columns: list[Tensor] = []
        waiting: dict[torch.device, list[int]] = {}
        for index, scalar in enumerate(scalars):
            if _on_host(scalar):
                self._values[index] = scalar.item()
            else:
                waiting.setdefault(scalar.device, []).append(index)
        for device, indices in waiting.items():
            column = column_of([scalars[index] for index in indices])
            self.columns.append(column)
            self._copies.append((indices, *_copy(column, device)))

    @property
    def column(self) -> Tensor | None:
        """All of them as one vector where they lie, None where they are on several devices."""
        return self.columns[0] if len(self.columns) == 1 and not self._values else None

    def take(self) -> list[float]:
        """Return the values in the order of the tensors."""
        for indices, host, copied in self._copies:
            if copied is not None:
                copied.synchronize()
            self._values.update(zip(indices, host.tolist(), strict=True))
        return [self._values[index] for index in range(self._count)]


def _copy(column: Tensor, device: torch.device) -> tuple[Tensor, torch.cuda.Event | None]:
    if device.type != "cuda":
        return column.cpu(), None
    with torch.cuda.device(device):
        host = torch.empty(column.shape, dtype=column.dtype, pin_memory=True)
        host.copy_(column, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
    return host, copied

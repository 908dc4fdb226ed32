"""Numbers on their way from a device to the host, which does not wait for them (worker)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nandiag.runtime.look.finite import column_of


class Sent:
    """0-d tensors on their way to the host: nothing waits for a device but :meth:`take`, for copies long begun."""

    def __init__(self, scalars: Sequence[Tensor]) -> None:
        self._count = len(scalars)
        self._values: dict[int, float] = {}
        self._copies: list[tuple[list[int], Tensor, torch.cuda.Event | None]] = []
        waiting: dict[torch.device, list[int]] = {}
        for index, scalar in enumerate(scalars):
            if scalar.device.type == "cpu":
                self._values[index] = scalar.item()
            else:
                waiting.setdefault(scalar.device, []).append(index)
        for device, indices in waiting.items():
            column = column_of([scalars[index] for index in indices])
            self._copies.append((indices, *_copy(column, device)))

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

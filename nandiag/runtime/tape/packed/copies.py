"""What buffers hold before a forward that may write into them, kept by as few calls as it can be (worker)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from nandiag.runtime.memory.there import alike, is_there

_SMALL = 1 << 16
Pair = tuple[Tensor, Tensor]


class Shelves:
    """Buffers that are copied time and again, sorted once: small ones of a kind lie together.

    Batch normalisation has three in each layer.
    """

    __slots__ = ("_alone", "_together")

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        self._alone: list[Tensor] = []
        for one in buffers:
            if type(one) is Tensor and one.layout is torch.strided and one.numel() <= _SMALL:
                groups.setdefault((one.dtype, one.device), []).append(one)
            else:
                self._alone.append(one)
        self._together = list(groups.values())

    def copies(self) -> Copies:
        """Return what they hold now; without those whose memory was let go of."""
        alone, together = list(filter(is_there, self._alone)), []
        for group in self._together:
            if len(group) > 1 and alike(group):
                together.append((group, _flat(group)))
            else:  # one was given other memory since
                alone += filter(is_there, group)
        return Copies([(one, one.detach().clone()) for one in alone], together)


class Copies:
    """What buffers held: each with its copy, and those side by side with the one copy of them all.

    Iterates over (buffer, what it held).
    """

    __slots__ = ("_alone", "_together")

    def __init__(self, alone: Sequence[Pair], together: Sequence[tuple[list[Tensor], Tensor]]) -> None:
        self._alone = alone
        self._together = together

    def __iter__(self) -> Iterator[Pair]:
        """Yield each buffer with what it held, of its shape."""
        yield from self._alone
        for group, flat in self._together:
            for one, held in zip(group, flat.split([one.numel() for one in group]), strict=True):
                yield one, held.view(one.shape)


def _flat(group: list[Tensor]) -> Tensor:
    # Of one alone torch would return the very memory.
    flat: Tensor = torch._C._nn.flatten_dense_tensors(group)
    return flat.detach()

"""What buffers hold before a forward that may write into them, kept by as few calls as it can be (worker)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nandiag.runtime.memory.there import alike, is_there

_SMALL = 1 << 16
_MOST_BYTES = 1 << 22
Pair = tuple[Tensor, Tensor]


class Shelves:
    """Buffers that are copied time and again, sorted once: small ones of a kind lie together.

    Batch normalisation has three in each layer.
    """

    __slots__ = ("_addresses", "_alone", "_together")

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        self._alone: list[Tensor] = []
        for one in buffers:
            if type(one) is Tensor and one.layout is torch.strided and one.numel() <= _SMALL:
                groups.setdefault((one.dtype, one.device), []).append(one)
            else:
                self._alone.append(one)
        self._together = list(groups.values())
        self._addresses: list[list[int]] = [[] for _ in self._together]

    def copies(self) -> Copies:
        """Return what they hold now; without those whose memory was let go of."""
        alone, together = list(filter(is_there, self._alone)), []
        for number, group in enumerate(self._together):
            if self._lie_as_before(number, group):
                together.append((group, _flat(group)))
            else:  # one was given other memory since
                alone += filter(is_there, group)
        return Copies([(one, one.detach().clone()) for one in alone], together)

    def _lie_as_before(self, number: int, group: list[Tensor]) -> bool:
        """Whether all can be read side by side, which is asked anew only when one has other memory than before."""
        addresses = list(map(Tensor.data_ptr, group))
        if addresses == self._addresses[number]:
            return True
        fit = len(group) > 1 and alike(group)
        self._addresses[number] = addresses if fit else []
        return fit


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


class Unwritten:
    """Buffers that no call was seen to write, each with its copy and the version of which that is the copy.

    A part of the model that joins late writes its own for the first time in the very step that may do harm.
    Iterates over (buffer, what it held), of those alone that were written since.
    """

    __slots__ = ("_copies", "_version_of", "_versions")

    def __init__(self, copies: list[Pair], version_of: Callable[[Tensor], int]) -> None:
        self._copies = copies
        self._version_of = version_of
        self._versions = self._now()

    @classmethod
    def of(cls, buffers: Iterable[Tensor], version_of: Callable[[Tensor], int]) -> Unwritten:
        """Copy the small ones among ``buffers``, the smallest first, as far as ``_MOST_BYTES`` go."""
        small = [one for one in buffers if type(one) is Tensor and one.layout is torch.strided]
        small.sort(key=lambda one: one.nbytes)
        sizes = accumulate(one.nbytes for one in small)
        kept = [one for one, size in zip(small, sizes, strict=True) if size <= _MOST_BYTES]
        return cls([(one, one.detach().clone()) for one in filter(is_there, kept)], version_of)

    def renewed(self) -> Unwritten:
        """Return this, or another one with new copies of those that were written since."""
        now = self._now()
        if now == self._versions:
            return self
        pairs = zip(self._copies, self._versions, now, strict=True)
        return Unwritten([_renewed(pair) if new != old else pair for pair, old, new in pairs], self._version_of)

    def _now(self) -> list[int]:
        return [self._version_of(one) for one, _ in self._copies]

    def __iter__(self) -> Iterator[Pair]:
        """Yield each buffer that was written since with what it held."""
        pairs = zip(self._copies, self._versions, self._now(), strict=True)
        return iter([pair for pair, old, new in pairs if new != old])


def _renewed(pair: Pair) -> Pair:
    return (pair[0], pair[0].detach().clone()) if is_there(pair[0]) else pair


def _flat(group: list[Tensor]) -> Tensor:
    # Of one alone torch would return the very memory.
    flat: Tensor = torch._C._nn.flatten_dense_tensors(group)
    return flat.detach()

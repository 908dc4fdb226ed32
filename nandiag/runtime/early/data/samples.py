"""Of a batch that is not like the others: which sample, which channel, and where the DataLoader had it from (worker).

Only run when a batch is already known to be unusual, but for :func:`channels_of`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nandiag.runtime.early.data.rows import Word, rows_of, source_of, sources
from nandiag.runtime.look.finite import local
from nandiag.runtime.names import is_wrapper
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.tape.packed.words import Made

_MOST_CHANNELS = 4096
_FEW_CHANNELS = 3
_MOST_VALUES = 1 << 16
_FAR = 3.0


def data_of(tensor: Tensor | None, word: Word | None, samples: int) -> Tensor | None:
    """Return the values of a tensor that a call was given as ``word``, or, where it is gone, of what it was made from.

    A script that writes ``model(x.cuda())`` holds only ``x``, whose samples are the same.
    """
    tensor = source_of(word, samples) if tensor is None else tensor
    return None if tensor is None else local(tensor)


def is_computed(tensor: Tensor | None, entry: Entry, tape: Tape) -> bool:
    """Whether what ``entry`` was given came of the weights, in this step or an earlier one: no data."""
    if tensor is None:
        return tape.offspring.leads_to(word.entry for word in entry.words if type(word) is Made)
    known = tape.maker(tensor)
    return tape.offspring.has(tensor) or (known is not None and tape.offspring.leads_to((known[0],)))


def sample_of(data: Tensor, word: Word | None, batches: Any, largest: float = math.inf) -> dict[str, object]:
    """Return which sample has the largest magnitude: ``sample`` of ``samples``, ``dataset`` and ``index`` there.

    Or ``row`` of ``rows``, where the script picked the batch from a larger tensor.

    ``others`` counts those besides that go far beyond ``largest``, which no batch before did.
    """
    if data.dim() < 2:
        return {}
    sizes = data.detach().abs().flatten(1).amax(1)
    sample = int(sizes.argmax())
    facts: dict[str, object] = {"sample": sample, "samples": len(sizes)}
    others = int((sizes > _FAR * largest).sum()) - 1
    facts |= {"others": others} if others > 0 else {}
    return {**facts, **(_index(sample, len(sizes), word, batches) or _row(sample, len(sizes), word))}


def _row(sample: int, samples: int, word: Word | None) -> dict[str, object]:
    rows = rows_of(word, samples)
    return {} if rows is None else {"row": int(rows.numbers[sample]), "rows": len(rows.base)}


def _index(sample: int, samples: int, word: Word | None, batches: Any) -> dict[str, object]:
    """Return the dataset and the index there of a sample, where the batch is a DataLoader's, also by way of ``to``."""
    for tensor in sources(word) if batches is not None else ():
        if tensor.layout is torch.strided and tensor.shape[:1] == (samples,):
            batch = batches.of(tensor.untyped_storage()._cdata)
            if batch is not None:
                return {"dataset": type(batch.dataset).__name__, **_at(batch.indices, sample, samples)}
    return {}


def _at(indices: Any, sample: int, samples: int) -> dict[str, object]:
    if isinstance(indices, Sequence) and len(indices) == samples and isinstance(indices[sample], int | str):
        return {"index": indices[sample]}
    return {}


def is_mask(data: Tensor) -> bool:
    """Whether there are only two different values in the data, or one: a mask, however large its numbers are."""
    return len(data.flatten()[:_MOST_VALUES].unique()) <= 2


def channels_of(tensor: Tensor) -> list[Tensor] | None:
    """Return the largest magnitude of any channel, the median of all channels', and which it is, as 0-d tensors.

    Channels are the second dimension of images and volumes (4 dimensions and more), else the last. None where there
    are too few, too many, or none.
    """
    if tensor.dim() < 2:
        return None
    dim = 1 if tensor.dim() >= 4 else tensor.dim() - 1
    if not _FEW_CHANNELS <= tensor.shape[dim] <= _MOST_CHANNELS:
        return None
    sizes = tensor.detach().abs().amax([other for other in range(tensor.dim()) if other != dim])
    largest, channel = sizes.max(0)
    return [largest, sizes.median(), channel]


_BY_POSITION = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


def name_of(module: nn.Module, place: int | str) -> str:
    """Return the name under which ``forward`` takes what stands at ``place`` (``images``, ``0[2]``, ``batch['x']``)."""
    while is_wrapper(module):
        inner = [child for child in module._modules.values() if child is not None]
        if len(inner) != 1:
            break
        module = inner[0]
    head, bracket, rest = str(place).partition("[")
    try:
        names = [*inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        names = []
    position = int(head) if head.isdigit() else math.inf
    if position < len(names) and names[int(position)].kind in _BY_POSITION:
        head = names[int(position)].name
    elif position < math.inf:
        head = f"input {head}"
    return f"{head}{bracket}{rest}"

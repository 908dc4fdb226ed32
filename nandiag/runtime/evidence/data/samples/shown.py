"""What asking a dataset again for a bad batch showed, as an event (worker)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from nandiag.events import Looked, TensorFact
from nandiag.runtime.evidence.explain import in_float64, inputs_of, outputs_of, scalars_of, site_of
from nandiag.runtime.evidence.heard import in_numpy
from nandiag.runtime.evidence.labels import storage
from nandiag.runtime.evidence.walk import is_brought

if TYPE_CHECKING:
    from nandiag.runtime.evidence.data.samples.refetch import Fetched
    from nandiag.runtime.evidence.op import Op
    from nandiag.runtime.replay.rerun import Rerun
    from nandiag.runtime.tape.entry import Entry


def in_dataset(fetched: Fetched, step: int, used: Op, bad: TensorFact, facts: dict[str, object]) -> Looked | None:
    """Return what in the dataset made the batch ``bad`` that ``used`` met first; None where that did not show."""
    micro_step = used.spot.micro_step
    if fetched.streamed is not None:
        known = fetched.streamed
        return replace(known, step=step, micro_step=micro_step, facts={**facts, **known.facts})
    if fetched.numpy is not None or fetched.made is not None:
        return in_numpy(fetched, Looked("found", "replay", step, micro_step, facts=facts), bad)
    op = fetched.op
    if op is None:
        return None
    return Looked(
        outcome="found", method="replay", step=step, micro_step=op.spot.micro_step, phase="data", source="op",
        site=site_of(op.spot, str(op.func)), inputs=inputs_of(op), outputs=outputs_of(op),
        facts={**facts, **scalars_of(op), **in_float64(op), **({"brought": True} if is_brought(op) else {})},
    )  # fmt: skip


def as_given(tensor: Tensor, entries: Iterable[Entry], result: Rerun) -> Tensor:
    """Return what the ``tensor`` held when the step began, where a copy of it took the writes of the step since."""
    own = result.originals.get(storage(tensor))
    held = (entry.before[1] for entry in entries if entry.before is not None and entry.before[0] is own)
    return tensor if own is None else next(held, tensor)

"""What the script left out, as the harm that it would have been (reader side)."""

from __future__ import annotations

from collections.abc import Iterable

from nandiag.analysis.timeline import Seen
from nandiag.events import Harm, Looked, Skipped


def harm_of(one: Seen[Skipped]) -> Seen[Harm]:
    """Return the harm that would have been done by what was left out: of its loss, or of its gradients."""
    skip, look = one.event, one.event.look
    gradients = skip.of in {"gradient norm", "early gradient"}
    what, phase = ("gradient", "backward") if gradients else ("loss", "loss")
    tensors, micro_step = ((), None) if look is None else (look.outputs[:1], look.micro_step)
    harm = Harm(what, skip.step, phase, tensors, 1, 1, micro_step=micro_step, loss=skip.loss)
    return Seen(one.rank, one.attempt, one.pid, one.seq, one.time, harm)


def looks_of(skips: Iterable[Seen[Skipped]]) -> Iterable[Seen[Looked]]:
    """Yield how the ranks came by what they left out, where that is known."""
    for one in skips:
        if one.event.look is not None:
            yield Seen(one.rank, one.attempt, one.pid, one.seq, one.time, one.event.look)

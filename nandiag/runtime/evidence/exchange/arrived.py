"""What another rank has sent goes into an op as it came: what is wrong with it was so there (worker)."""

from __future__ import annotations

import torch.distributed as dist

from nandiag.runtime.collectives.messages import ARRIVALS, told_of
from nandiag.runtime.evidence.op import Op
from nandiag.runtime.guard import sparing
from nandiag.runtime.tape.packed.nested import tensors_in

_OF_ONE = frozenset({"broadcast", "scatter", "recv", "irecv"})


@sparing
def arrived(op: Op) -> dict[str, object]:
    """Return of which inputs of ``op``, by their numbers, which rank has sent them, and by which call here."""
    found: list[object] = []
    for index, one in enumerate(tensors_in(op.words)):
        call = ARRIVALS.call_of(one)
        if call is None or call.op not in _OF_ONE or call.peer is None or call.peer == dist.get_rank():
            continue
        at = told_of(call).get("called_at")
        found.append([index, call.op, call.peer, *(at[:2] if isinstance(at, list) else (None, None))])
    return {"arrived": found} if found else {}

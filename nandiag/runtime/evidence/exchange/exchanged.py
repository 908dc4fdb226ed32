"""What a clean local replay leaves out: gradients exchanged by a hook or the script itself (worker)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from nandiag.events import Looked
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.tape.exchange import Exchange

OPS = {
    "all_reduce": "allreduce_",
    "all_gather": "allgather_",
    "all_gather_into_tensor": "_allgather_base_",
    "all_gather_single": "_allgather_base_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce": "reduce_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_tensor": "_reduce_scatter_base_",
    "broadcast": "broadcast_",
    "gather": "gather_",
    "scatter": "scatter_",
    "send": "send",
    "all_to_all": "alltoall_",
    "all_to_all_single": "alltoall_base_",
}

_MOST_TOLD = 32


def with_exchange(looked: Looked, largest: float | None, roots: list[nn.Module], own: list[Exchange]) -> Looked:
    """Add to a finite look which exchange of gradients it did not make again, and how large they were before it.

    ``largest`` is the largest magnitude among this rank's own gradients, as backward left them; ``own`` are collectives
    that the script called by itself.
    """
    hook = hook_of(roots)
    last = own[-1] if own else None
    if hook is None and last is None:
        return looked
    facts: dict[str, object] = {**looked.facts, "complete": False, "collective": last.name if last else hook}
    facts["by"] = "script" if last else "comm_hook"
    brought = [one.message.facts()["handed"] for one in own[-_MOST_TOLD:] if one.message is not None]
    facts |= {"exchanged": brought} if brought else {}
    if last is not None and last.dtype is not None:
        facts["exchanged_dtype"] = str(last.dtype).removeprefix("torch.")
    if largest is not None:
        facts["local_gradient_absmax"] = largest
    site = None
    if last is not None:
        spot = Spot(None, None, last.frames, "collective", last.micro_step)
        site = site_of(spot, f"c10d.{OPS.get(last.name, last.name)}.default")
    return replace(looked, phase="collective", site=site, facts=facts)


_OF_UPDATE = frozenset({"reconstructed", "parameters", "rate_set_at", "settings"})


def of_rate(looked: Looked, made: Looked | None) -> Looked:
    """Return ``looked``, an update that was given a bad number, at the line that ``made`` the number of its rate.

    Where that was received, with the message that brought it.
    """
    if made is None or made.step != looked.step or made.outcome != "found":
        return looked
    if made.source == "op":
        # What the update's own op was given, and what stood in for the weights there, is nothing of the number's.
        facts = {key: value for key, value in looked.facts.items() if key in _OF_UPDATE} | made.facts
        facts["number"] = True
        return replace(looked, site=made.site, inputs=made.inputs, outputs=made.outputs, facts=facts)
    handed = made.facts.get("handed") if made.source == "received" else None
    return looked if handed is None else replace(looked, facts={**looked.facts, "fed": True, "handed": handed})


def hook_of(roots: list[nn.Module]) -> str | None:
    """Return the name of the communication hook of a DDP root, None where none has one."""
    for root in roots:
        hooks: list[Any] = getattr(root, "_comm_hooks", None) or []
        if hooks:
            return str(getattr(hooks[-1][0], "__qualname__", hooks[-1][0])).rpartition("<locals>.")[2]
    return None

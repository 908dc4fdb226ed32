"""The event that tells whence a weight is bad that was bad before its first step (worker)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from nandiag.events import Looked
from nandiag.runtime.births.known import FILE, LAST, OP, OUTSIDE, RECEIVED, UNWRITTEN, Birth
from nandiag.runtime.evidence.around.place import set_by_class
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.heard import came_in
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame
from nandiag.runtime.look.called import holder
from nandiag.runtime.look.finite import fact
from nandiag.runtime.look.weights import Held

_THROUGH = "what it went through on its way into the weight was not looked at and is gone"
_LAST = "this is the last write into it that was seen; what made the values was not looked at"
_LAID = "this line wrote NaN there, and nothing was seen to write there since"


def tell(tensor: Tensor, held: Held | None, birth: Birth, step: int) -> Looked:
    """Return the event for a bad tensor of which ``birth`` is known; ``held`` where it is a weight or a buffer."""
    frames = tuple(map(Frame._make, birth.call.places))
    site = site_of(Spot(None, None, frames, "init", 0), birth.op)
    owner = None if held is None else held.owner
    if owner is not None:
        site = replace(site, module=owner.module, module_class=owner.module_class)
    through = bool(birth.facts.get("through"))
    unsure = birth.how == LAST or through or bool(birth.facts.get("unsure"))
    facts = {key: value for key, value in birth.facts.items() if key not in {"unsure", "through", "laid"}}
    facts |= {} if held is None else {"weight": held.name, "weight_is": _kind(held)}
    by = None if held is None else holder(held.tensor)
    facts |= {} if by is None else {"held_by": by}
    if owner is not None and birth.how == UNWRITTEN:
        meant = set_by_class(frames, owner.module_class, owner.fqn.rpartition(".")[2])
        facts |= {} if meant is None else {"made_as": meant}
    outputs = (*birth.outputs, *([] if held is None and birth.outputs else [fact(tensor, held.name if held else None)]))
    source = OUTSIDE if birth.how in {FILE, OUTSIDE} else RECEIVED if birth.how == RECEIVED else OP
    return Looked(
        outcome="found", method="tape" if unsure else "record", step=step,
        phase="data" if held is None else "checkpoint" if birth.how == FILE else "init", source=source,
        site=site, inputs=birth.inputs, outputs=outputs,
        facts={**facts, "birth": birth.how, "call": birth.call.name},
        reason=_reason(birth, through=through, unsure=unsure),
    )  # fmt: skip


def _reason(birth: Birth, *, through: bool, unsure: bool) -> str | None:
    if birth.facts.get("laid"):
        return _LAID
    return _THROUGH if through and birth.how != LAST else _LAST if unsure else None


def _kind(held: Held) -> str:
    """Return what it is; of a weight that is not trained that too: a copy has the names of the model that is."""
    frozen = held.what == "parameter" and isinstance(held.tensor, nn.Parameter) and not held.tensor.requires_grad
    return "untrained parameter" if frozen else held.what.replace("_", " ")


def brought_by(birth: Birth, born: Looked, looked: Looked) -> Looked | None:
    """Return ``looked`` with the way by which bad values came into torch, or to this rank; None where it made them."""
    if birth.how == OUTSIDE and looked.source == "input":
        return replace(looked, facts={**looked.facts, **came_in(born.site)})
    if birth.how != RECEIVED:
        return None
    if looked.source == "parameter":
        return looked  # the rank that sent it tells of its own
    return replace(looked, source=RECEIVED, phase="collective", facts={**looked.facts, **birth.facts})

"""Where a clip of gradients belongs: before the update, wherever that is made (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import Trainer

_IN_HOOK = "torch.nn.utils.clip_grad_norm_([p], 1.0)  # p: the parameter that the hook is given"


def before(facts: Facts, own: Trainer | None, text: str) -> Suggestion:
    """Say to clip (``text``, without its end), with the line that does it; ``own``: of this one of several optimizers.

    Where hooks make the updates within backward they are made, and the gradients are gone, behind it.
    """
    if facts.compared is not None and facts.compared.hooked:
        return Suggestion(f"{text}, in the hook that makes it: behind backward() it is made already.", _IN_HOOK)
    return Suggestion(f"{text}.", facts.clipped(own))

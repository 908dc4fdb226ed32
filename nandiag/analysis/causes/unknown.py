"""No cause is known: what can be said all the same, and where to look (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

_PLACES = {
    "loss": "Look at the code between the model's outputs and backward(): log, division, sqrt, exp, an empty mean.",
    "gradient": (
        "Look for functions whose gradient is infinite at a finite value (sqrt or norm at 0, a division behind "
        "torch.where), and for values beyond the range of the dtype."
    ),
    "state": "Look at what changed these weights: the optimizer's settings, and code that writes to them by itself.",
    "look": "Look at the values that went into this place; nothing that was recorded explains the result.",
}
_CHECK = (
    "The NaN check of anomaly mode does not show what went into the node. Leave detect_anomaly away: nandiag then runs "
    "the step again itself, and names the op's inputs and the cause."
)
_ONCE = (
    "It did not show a second time: look at state that changed in between, a race, memory that nobody wrote, or the "
    "hardware. Is it always the same host and device?"
)


def explain(facts: Facts) -> Cause | None:
    """Say where to look, by what was seen."""
    look = facts.look
    once = look is not None and look.outcome == "finite" and look.method == "replay" and facts.basis != "state"
    place = _ONCE if once else _CHECK if look is not None and look.method == "check" else _PLACES.get(facts.basis)
    return None if place is None else Cause("unknown", (), (Suggestion(place),), strength=0)

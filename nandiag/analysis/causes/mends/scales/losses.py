"""What a loss is multiplied by before its backward, by the script or by its GradScaler: a gradient too large by it."""

from __future__ import annotations

from nandiag.analysis.causes.facts import LARGEST, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_ENDED = (
    "A scale grows until it overflows: let such a step come to scaler.step({0}), which leaves the update out, and to "
    "scaler.update(), which lowers the scale. Before them raise nothing by a gradient (error_if_nonfinite=True and "
    "detect_anomaly do)."
)
_USED = (
    "A scale grows until it overflows: make the update by scaler.step({0}), which leaves it out then, and let "
    "scaler.update() lower the scale."
)
_IN_HALF = (
    "GradScaler takes no gradients in float16: keep the weights in float32, and what the model is called with (leave "
    "out .half()), and run the forward under torch.autocast."
)


def alone(facts: Facts) -> Suggestion | None:
    """Return how the update is left out that a GradScaler's scale alone overflows in; ``None`` of any other."""
    if facts.scale_alone is None:
        return None
    if not under_autocast(facts) and any(dtype_of(one) == "float16" for one in facts.origin.outputs):
        return Suggestion(_IN_HALF, f"{facts.called('handed', 'model')}.float()")
    optimizer = facts.called("optimizer")
    text = _ENDED if facts.extra.get("script_ended") is True else _USED
    return Suggestion(text.format(optimizer), f"scaler.step({optimizer})\nscaler.update()")


def by_script(facts: Facts) -> Suggestion | None:
    """A gradient that is too large by the factor alone which the script multiplies its loss by."""
    text = None if facts.node is None else too_high(facts, facts.number("float64_absmax"))
    if text is None:
        return None
    if not under_autocast(facts):
        return Suggestion(text)
    code = f"scaler.scale(loss).backward(); scaler.step({facts.called('optimizer')}); scaler.update()"
    device = (facts.origin.device or "cuda").partition(":")[0]
    return Suggestion(text, f'scaler = torch.amp.GradScaler("{device}"); {code}')


def under_autocast(facts: Facts) -> bool:
    """Whether the weights are in float32, as a rule: GradScaler takes no gradients in float16."""
    return facts.look is not None and facts.look.facts.get("autocast") is True


def too_high(facts: Facts, largest: float | None) -> str | None:
    """Return what to do about the number which the loss is multiplied by, ``None`` if they are not too large by it.

    ``largest`` is the largest magnitude among the gradients, or of a sum of them.
    """
    known = facts.look.facts if facts.look is not None else {}
    factor, at = words.as_number(known.get("loss_factor")), known.get("loss_factor_at")
    if factor is None or largest is None or abs(factor) <= 1.0 or not isinstance(at, list):
        return None
    without = largest / abs(factor)
    if without > LARGEST["float16"]:
        return None
    where = "" if at[0] is None else f" at {words.place(at)}"
    mend = "or let GradScaler choose it, which leaves out the update where it was too high."
    if not under_autocast(facts):
        mend = "and leave out the update where a gradient is not finite, as GradScaler does."
    return (
        f"The script multiplies its loss by {words.number(factor)} before backward(){where}; without that the gradient "
        f"goes to {words.number(without)}. Lower that number, {mend}"
    )

"""-Inf that a mask has written, and that a sum, or a loss that picks it, does not leave out (reader side)."""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes import fitting
from nandiag.analysis.causes.facts import LIKELY, Cause, Facts
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_PICKS = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
_SUMS = frozenset({"sum", "mean", "dot"})
_SMOOTHED = Suggestion(
    "Or give the share to the classes that are left alone.",
    "logp = logits.log_softmax(-1); left = logits.isfinite()\n"
    "smooth = -logp.masked_fill(~left, 0).sum(-1) / left.sum(-1)",
)


def explain(facts: Facts) -> Cause | None:
    """Name the -inf of a mask that went into a sum: it is the whole sum then."""
    given = facts.origin.inputs
    if facts.source != "op" or facts.node is not None or not given or (facts.op or "") not in _PICKS | _SUMS:
        return None
    masked = next((one for one in given if one.only_neginf), None)
    if masked is None or any(one.nan or one.posinf for one in given):
        return None
    if facts.op in _PICKS:
        text = (
            f"the loss picks -inf of {words.count(masked.neginf, 'value')} that a mask left so: a target is masked out"
        )
        return Cause("domain_error", (text, *_mask(facts)), (_of_target(),), LIKELY)
    text = (
        f"{words.count(masked.neginf, 'value')} of {masked.numel:,} that go into {facts.op} are -inf, as a mask has it"
    )
    return Cause("domain_error", (text, *_mask(facts)), _advice(facts), LIKELY)


def _mask(facts: Facts) -> tuple[str, ...]:
    """Tell where the -inf was written."""
    at = facts.extra.get("masked_at")
    if not isinstance(at, list) or len(at) != 2:
        return ()
    return (f"The -inf was written at {posixpath.basename(str(at[0]))}:{at[1]}.",)


def _of_target() -> Suggestion:
    text = "Leave such targets out of the loss, or keep the target's own class out of the mask."
    return Suggestion(text, "target = target.masked_fill(mask.gather(1, target[:, None])[:, 0], -100)")


def _advice(facts: Facts) -> tuple[Suggestion, ...]:
    plain = _without_smoothing(facts)
    if plain is not None:
        text = (
            "Label smoothing gives every class a share, those at -inf as well: leave it out where classes are masked."
        )
        return Suggestion(text, plain), _SMOOTHED
    left_out = fitting.argument(
        facts.origin, facts.op or "", lambda text: f"{text}.masked_fill({text} == -torch.inf, 0)"
    )
    text = f"Leave out of the {facts.op} what the mask leaves out."
    return (Suggestion(text, left_out or "x.masked_fill(mask, 0).sum()"),)


def _without_smoothing(facts: Facts) -> str | None:
    """Return the user's line with its ``cross_entropy(..., label_smoothing=a)`` without the last."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call):
        return None
    if not any(word.arg == "label_smoothing" for word in found[1].keywords):
        return None
    found[1].keywords = [word for word in found[1].keywords if word.arg != "label_smoothing"]
    return fitting.whole(facts.origin, ast.unparse(found[1]))

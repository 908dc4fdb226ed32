"""GradScaler that skips and skips: when its skips are a collapse and no longer its normal search (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="loss_scale_collapse",
    what="GradScaler left out step after step and halved its scale each time, and the gradients were still not "
    "finite: it is not their scale. Something overflows in the float16 forward, or a NaN comes from "
    "elsewhere. A few skips in the beginning, or one every 2000 steps, are how it looks for its scale, and "
    "normal.",
    looks=(
        "error[loss_scale_collapse]: The loss scale of GradScaler collapsed on rank 0 at step 61",
        "GradScaler left out 6 steps in a row; the scale is 0.5",
    ),
    fix=(
        Suggestion(
            "Find what overflows: nandiag names the op where it can run the step again. Lift that op to float32.",
            'with torch.autocast("cuda", enabled=False):\n    y = f(x.float())',
        ),
        Suggestion(
            "Use bfloat16 where the device has it, and no scaler.",
            'with torch.autocast("cuda", dtype=torch.bfloat16):',
        ),
        Suggestion(
            "Check the scaler's settings: a start that fits (init_scale), when it grows (growth_interval), and one "
            "update() for each step.",
            'torch.amp.GradScaler("cuda", init_scale=2.0**12, growth_factor=2.0, backoff_factor=0.5, '
            "growth_interval=2000)",
        ),
        Suggestion(
            "Scale the loss that backward() is called on, unscale before clipping, and never step an optimizer by "
            "hand beside the scaler.",
            "scaler.unscale_(optimizer)\n"
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
            "scaler.step(optimizer)\n"
            "scaler.update()",
        ),
        Suggestion(
            "The model's weights stay in float32 under autocast: a model.half() beside a GradScaler underflows in "
            "the update.",
        ),
    ),
    pages=(
        "amp.html",
        "notes/amp_examples.html",
    ),
)


def explain(facts: Facts) -> Cause | None:
    """Name the collapse where skipped steps are all that was seen."""
    if facts.basis != "scale" or facts.skip is None:
        return None
    scale = "" if facts.skip.scale is None else f"; the scale is {words.number(facts.skip.scale)}"
    return Cause(
        slug="loss_scale_collapse",
        evidence=(
            f"GradScaler left out {words.count(facts.skip.in_a_row, 'step')} in a row{scale}",
            "A smaller scale did not make the gradients finite: they are not finite by themselves.",
        ),
        suggestions=(Suggestion("Look for an overflow in float16 in forward, or use bfloat16 without a scaler."),),
        story=True,
    )

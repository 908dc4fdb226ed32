"""From which checkpoint a run is resumed (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.course import Course, courses
from nandiag.analysis.report import Report
from nandiag.analysis.ways.spread import BUFFERS

_RAN_AWAY = frozenset({"lr_invalid", "lr_divergence", "gradient_explosion", "optimizer_setting"})
_SPIKES = frozenset({"loss_spike", "grad_norm_spike"})
# Weights of a network that learns are not so large.
_NO_WEIGHT = 1e15
_ANSWERED = frozenset({"went_on", "spoiled_between"})
TELLS_WHERE = frozenset({"held_bad", "spoiled_between"})
_NEAR = 20


def resume_at(report: Report) -> tuple[int, bool] | None:
    """Return the step before which a checkpoint should have been saved, and whether it ran away from there on.

    ``None`` where the run went on with good weights, none were seen finite, or a finding says it better.
    """
    last = report.verdict.last_finite_step
    slugs = {one.slug for one in report.findings}
    answered = slugs & _ANSWERED and "nonfinite_buffer" not in slugs  # what lasts is in each checkpoint since
    if not report.verdict.anomaly or last is None or answered:
        return None
    if report.verdict.cause in _RAN_AWAY:
        began = [step for step in (*_spikes_near(report, last), *_onset(report)) if 0 < step <= last]
        if began:
            return min(began), True
    return max(last + 1, _made_state(report) or 0), False


def _made_state(report: Report) -> int | None:
    """Return the step whose update, made again on finite state, made the state bad, where that alone is bad.

    State is looked at in turns: it may have been seen finite long before.
    """
    origin = report.verdict.origin
    if origin is None or origin.phase != "optimizer" or origin.op is None or not _only_state(report):
        return None
    made = any(one.bad for one in origin.outputs) and not any(one.bad for one in origin.inputs)
    return origin.step if made and "init" not in {one.phase for one in report.verdict.spread} else None


def _spikes_near(report: Report, last: int) -> list[int]:
    spikes = (one.step for one in report.findings if one.slug in _SPIKES)
    return [step for step in spikes if step is not None and last - _NEAR <= step]


def _onset(report: Report) -> tuple[int, ...]:
    """Return the last calm step before loss or gradients grew: its update left the weights by which they did."""
    away = [one for one in _courses(report)[:1] if one.ran_away and not one.from_the_start]
    return tuple(one.rows[one.calm - 1].step for one in away if one.calm)


def _courses(report: Report) -> tuple[Course, ...]:
    """Return how loss and gradients went on the first rank of the origin, up to it."""
    origin = report.verdict.origin
    past = report.history.get(str(origin.ranks[0])) if origin is not None and origin.ranks else None
    return tuple(courses(past, origin.step + (origin.phase == "optimizer"))) if origin is not None else ()


def resume_words(report: Report, step: int) -> str:
    """Return from which checkpoint to resume, and what is known of the weights before ``step``, as far as they matter.

    What is bad may be none of them; and a weight may have run away long before, and be finite.
    """
    origin, large = report.verdict.origin, _overgrown(report)
    if large is not None:
        told = f"before step {step} it was finite, but far too large"
        return f"from a checkpoint in which {large} has its usual size: {told}"
    from_where = f"from a checkpoint saved before step {step}"
    if origin is not None and not origin.outputs and any(one.bad and not one.name for one in origin.inputs):
        return from_where
    held = "weights and buffers" if any(one.what in BUFFERS for one in report.verdict.spread) else "weights"
    if report.verdict.cause in _RAN_AWAY and any(one.ran_away and one.from_the_start for one in _courses(report)[:1]):
        away = f"the {held} were finite until step {step}, and ran away from the first updates on"
        return f"from what this run began with: {away}"
    if _only_state(report):
        last = report.verdict.last_finite_step
        when = "then" if last is None or last + 1 == step else f"after step {last}"
        return f"{from_where}; the optimizer's state was last seen finite {when}, and no weight was seen bad"
    return f"{from_where}; the {held} were finite until then"


def _only_state(report: Report) -> bool:
    """Whether the state of an optimizer alone is known to have been bad, with all losses and gradients finite."""
    bad = {one.slug for one in report.findings if one.slug.startswith("nonfinite_") and one.slug != "nonfinite_again"}
    return bad == {"nonfinite_optimizer_state"}


def _overgrown(report: Report) -> str | None:
    """Return the largest weight that went into the origin's op and was far larger than weights are.

    So is a buffer that the op makes of itself: it goes in without a name where it is written outside of autograd.
    """
    origin = report.verdict.origin
    if origin is None:
        return None
    known = [(one.name or _written(report, one.shape), one) for one in origin.inputs if not one.bad]
    large = [(one.absmax or 0.0, name) for name, one in known if name and (one.max or 0) > 0]
    most, name = max(large, default=(0.0, ""))
    return name if most > _NO_WEIGHT else None


def _written(report: Report, shape: tuple[int, ...]) -> str | None:
    """Return the one buffer that was bad in the origin's step, where what was made there is of that shape."""
    origin = report.verdict.origin
    if origin is None or not any(one.bad and one.shape == shape for one in origin.outputs):
        return None
    held = [one for one in report.verdict.spread if one.what in BUFFERS and one.step == origin.step]
    names = {name for one in held for name in one.names}
    return names.pop() if len(names) == 1 else None

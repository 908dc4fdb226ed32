"""Finite but unusually large data: a fault, or a jump of the loss, right behind calm updates (reader side)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import median

from nandiag.analysis.causes.course import Course, courses
from nandiag.analysis.causes.divergence import CALM_ENOUGH, is_elsewhere, sudden
from nandiag.analysis.causes.facts import HALF, LIKELY, POSSIBLE, Cause, Facts, dtype_of
from nandiag.analysis.causes.init_scale import new_weights
from nandiag.analysis.causes.mends import states
from nandiag.analysis.causes.mends.counts import positions
from nandiag.analysis.causes.mends.exponentials import decays, overflowing, recurrences
from nandiag.analysis.causes.mends.limits import batches
from nandiag.analysis.causes.mends.logarithms import signs
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.causes.targets_far import beyond, by_exponential
from nandiag.analysis.early.texts import shape_of, told
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

EXPLAIN = Explanation(
    slug="data_outlier",
    what="A sample is finite, but so far from the others that the step with it left the range of the dtype. The "
    "steps before were calm, so that the learning rate is not to blame.",
    looks=(
        "error[data_outlier]: +Inf born on rank 0 at step 48 in the loss code",
        (
            "At step 48 sample 3 of 24 in input, index 731 of Sensors, holds a value of size 3.1e22; the largest of "
            "48 batches before was 4.139 (414.9 standard deviations above the mean, by logarithms)."
        ),
    ),
    fix=(
        Suggestion(
            "Measure each feature against the mean and the deviation of the training set, and drop or clip what "
            "lies far out (a z-score filter; 6 to 10 deviations are a usual bound).",
            "z = (x - mean) / (std + 1e-6)\nkeep = (z.abs() < 8).all(-1)",
        ),
        Suggestion(
            "Normalise inputs by statistics of the training set, not by those of one batch.",
            "x = ((x - mean) / (std + 1e-6)).clamp(-8, 8)",
        ),
        Suggestion(
            "Where such values are real: take their logarithm, or use a loss that grows linearly.",
            "nn.SmoothL1Loss()",
        ),
        Suggestion(
            "Clip the gradients, so that one sample cannot throw the weights far.",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        ),
    ),
    pages=(
        "data.html",
        "generated/torch.nn.SmoothL1Loss.html",
        "generated/torch.nn.utils.clip_grad_norm_.html",
    ),
)
_STEPS_BEFORE = 5
# So many times the largest of all batches before: no run of batches comes to that by chance.
_FAR = 100.0
# The norm's growth over the loss's from which on the model is steeper than before.
_STEEPER = 2.0
# The size of a loss over what it goes up and down by, from which on it is not centred.
_STEADY = 2.0
_ELSEWHERE = {"init", "data", "checkpoint", "collective"}


def explain(facts: Facts) -> Cause | None:
    """Point at a batch that was seen to be unlike the others, or whose loss jumped behind calm updates."""
    if is_elsewhere(facts, _ELSEWHERE) or facts.looped is not None:
        return None
    near = [one for one in reversed(facts.warned) if _is_near(one, facts.origin.step)]
    # What came before, and did no harm, may be usual after all: it is to have to do with this one.
    seen = next((one for one in near if not one.facts.get("aside") or _fits(facts, one)), None)
    if seen is not None and (more := beyond(facts, seen)) is not None:
        return more
    if seen is not None:
        why = by_exponential(facts, seen)
        return _and(_seen(facts, seen, LIKELY if _fits(facts, seen) else POSSIBLE), why)
    longer = _longer(facts, facts.origin.step)
    if longer is not None:
        return _of_length(facts, longer)
    return _by_course(facts)


def _and(cause: Cause, why: str | None) -> Cause:
    return cause if why is None else replace(cause, evidence=(*cause.evidence, why))


def _longer(facts: Facts, step: int) -> Warned | None:
    """Return what says that the batch of ``step`` is far longer than all before; what overflowed may grow with it.

    A state whose decay is above 1 throughout is to be mended itself: it only has more turns to grow in.
    """
    found = (one for one in facts.warned if (one.slug, one.step) == ("batch_longer", step))
    by_length = overflows(facts) and _only_size(facts) and states.undecayed(facts) is None
    return next(found, None) if by_length else None


def _by_course(facts: Facts) -> Cause | None:
    """No batch was seen to be unlike the others: the loss may tell of one all the same."""
    found = courses(facts.history, facts.origin.step + (facts.origin.phase == "optimizer"))
    jumped = next((course for course in found if sudden(course)), None)
    if jumped is not None:
        return None if jumped.rate_rose else _by_jump(facts, jumped)
    step = facts.origin.step
    if not found or not _broke_at_once(facts, found):
        return None
    calm = _calm(found[0], step)
    if not _was_as_before(facts, step):
        return _of(f"{calm}: that speaks for the batch of step {step}.", step)
    return None if facts.is_by_the_model else _of_targets(facts, f"{calm}.", step)


def _was_as_before(facts: Facts, step: int) -> bool:
    """Whether what the model was given in that step was looked at, and was no larger than what it was given before."""
    return facts.compared is not None and step in facts.compared.batches


def _by_jump(facts: Facts, course: Course) -> Cause | None:
    step = course.onset.step
    longer = _longer(facts, step)
    if longer is not None:
        known = _of_length(facts, longer)
        return replace(known, evidence=(*known.evidence, f"{_jumped(course)}."))
    if not _was_as_before(facts, step):
        found = _of(_jumped(course) + ": that points at the batch of this step, not at the updates.", step)
        return found if not _stayed(course) else replace(found, suggestions=(_and_behind(step), *found.suggestions[1:]))
    if _is_steeper(course) and _is_a_size(course):
        return _of_model(f"{_jumped(course)}, and the gradients grew more than that.", step)
    return _of_targets(facts, f"{_jumped(course)}.", step)


def _stayed(course: Course) -> bool:
    """Whether the loss of the next steps stayed far above what it was: one batch alone need not be it."""
    onset, behind = course.onset, [row for row in course.rows[course.calm + 1 :] if row.loss is not None]
    most = max((abs(row.loss) for row in course.rows[: course.calm] if row.loss is not None), default=0.0)
    far = [row.loss is not None and row.step > onset.step and abs(row.loss) > _FAR * most for row in behind]
    return bool(far) and all(far)


def _and_behind(step: int) -> Suggestion:
    return Suggestion(
        f"Look at the batches from step {step} on: where those behind it are as large as that of step {step} (the loss "
        f"stayed so), the scale of the data changed there (other units, or a set that is not normalised): bring it to "
        "that of the others while loading. Where it is one alone, drop or clip its far values."
    )


def _is_steeper(course: Course) -> bool:
    """Whether the gradients grew more than the loss: of a power of the error large targets make them grow less."""
    onset, calm = course.onset, course.rows[: course.calm]
    losses = [abs(row.loss) for row in calm if row.loss is not None]
    norms = [row.norm for row in calm if row.norm is not None]
    if not losses or not norms or not onset.loss or not onset.norm:
        return False
    return onset.norm * max(losses) > _STEEPER * abs(onset.loss) * max(norms)


def _is_a_size(course: Course) -> bool:
    """Whether the loss may be a power of an error: of one sign, and not small beside what it goes up and down by.

    A difference, or what is weighed by what is centred (a policy's loss), stays near 0 however large its parts are.
    """
    calm = [row.loss for row in course.rows[: course.calm] if row.loss is not None]
    signs = {loss > 0 for loss in (*calm, course.onset.loss or 0.0) if loss}
    turns = [abs(new - old) for old, new in pairwise(calm)]
    return len(signs) < 2 and (not turns or median(map(abs, calm)) > _STEADY * median(turns))


def _of_model(text: str, step: int) -> Cause:
    text = f"{text} {_AS_BEFORE} {_parts(step)}, or a layer, may have made it so."
    look = Suggestion(
        f"Look at what the model itself makes large in step {step}: a layer that divides by, or takes the root or "
        "logarithm of, what came near 0 there (a deviation, a norm, a count). Of a loss that is no power of an error, "
        f"look at {_parts(step)} first."
    )
    return replace(_of(text, step), slug="gradient_explosion", suggestions=(look,))


def _of_targets(facts: Facts, text: str, step: int) -> Cause:
    text = f"{text} {_AS_BEFORE} a layer or {_parts(step)} may have made it so."
    look = Suggestion(f"Look at {_parts(step)}, at what was changed by then, and at what a layer makes large there.")
    new = facts.compared is not None and facts.compared.step == step and bool(facts.compared.fresh)
    also = (f"{new_weights(facts.compared)}.",) if new and facts.compared is not None else ()
    return replace(_of(text, step), evidence=(text, *also), suggestions=(look,))


_AS_BEFORE = "What the model was given then was no larger than before:"


def _parts(step: int) -> str:
    """Return what goes into a loss beside what the model gives."""
    return f"the targets, weights or advantages of step {step}"


def _broke_at_once(facts: Facts, found: tuple[Course, ...]) -> bool:
    """Whether a calm run left the range of a wide dtype in one step: half precision is left by a slow growth too."""
    calm = all(course.calm >= max(len(course.rows), CALM_ENOUGH) and course.leap is None for course in found)
    if not calm or facts.origin.phase not in {"forward", "loss"}:
        return False
    return overflows(facts) and _only_size(facts) and not _grows_by_itself(facts)


def _grows_by_itself(facts: Facts) -> bool:
    """Whether no batch is to blame: for a weight, a decay that goes both ways, positions, or a loop's product."""
    if facts.overgrown is not None or decays.both_ways(facts) is not None or positions.alone(facts) is not None:
        return True
    return recurrences.scaled(facts) is not None or states.is_kept(facts)


def _only_size(facts: Facts) -> bool:
    """Whether nothing but the size of the data can be changed: else the op itself is what to mend first.

    An exponential is bounded, a logarithm kept from zero, and half precision is left by large numbers that are right.
    """
    if facts.source != "op":
        return True
    narrow = any(fact.bad and dtype_of(fact) in HALF for fact in facts.origin.outputs)
    return overflows(facts) and not narrow and facts.op not in overflowing.OPS


def _fits(facts: Facts, seen: Warned) -> bool:
    return _only_size(facts) or _explains(facts, seen)


def _explains(facts: Facts, seen: Warned) -> bool:
    """Whether a value far beyond all before came in the very step that left the range: without it the op had held."""
    size, largest = (words.as_number(seen.facts.get(name)) for name in ("size", "largest"))
    far = size is not None and largest is not None and size >= _FAR * largest
    return far and seen.step == facts.origin.step and overflows(facts)


def _jumped(course: Course) -> str:
    row = course.onset
    before = max(abs(one.loss) for one in course.rows[: course.calm] if one.loss is not None)
    return (
        f"At step {row.step} the loss jumped to {words.number(row.loss)}, after at most {words.number(before)} in the "
        f"{course.calm} calm steps before"
    )


def _calm(course: Course, step: int) -> str:
    rows = [row for row in course.rows if row.step < step]  # its own loss may have been finite, as all before
    norms = [row.norm for row in rows if row.norm is not None]
    most = f", with gradient norms of at most {words.number(max(norms))}" if norms else ""
    return f"The {len(rows)} steps before were calm{most}"


def _is_near(warned: Warned, step: int) -> bool:
    """Whether a batch unlike the others was seen in the step of the harm, or in one whose update led to it."""
    return warned.slug == "batch_outlier" and step - _STEPS_BEFORE <= warned.step <= step


def _of_length(facts: Facts, warned: Warned) -> Cause:
    now, before = shape_of(warned, "shape"), shape_of(warned, "longest")
    grown = [index for index, pair in enumerate(zip(now, before, strict=False)) if pair[0] > pair[1]]
    name = batches.name_of(warned)
    weight = states.by_a_weight(facts)
    cut = f"{name} = {name}[{':, ' * grown[0]}:{before[grown[0]]}]" if len(now) == len(before) and grown else None
    return Cause(
        slug="data_outlier",
        evidence=(f"At step {warned.step}{facts.on_rank(warned)} {told(warned)}.",),
        suggestions=(
            *([] if weight is None else [weight]),
            Suggestion("Cut long samples into pieces while loading, or drop what is longer than a bound.", cut),
            Suggestion(
                "Or bound what grows with the length: a gated or normalised cell, a mean in the place of a sum."
            ),
        ),
        strength=LIKELY,
        story=True,
    )


def _seen(facts: Facts, warned: Warned, strength: int) -> Cause:
    dataset, index = warned.facts.get("dataset"), warned.facts.get("index")
    known = None if dataset is None or index is None else f"{dataset}[{index}]{facts.on_rank(warned)}"
    text = f"At step {warned.step}{facts.on_rank(warned)} {told(warned)}."
    if signs.by_batch(facts) is not None:
        signed = replace(_of(text, warned.step), suggestions=(_of_a_sign(warned, known),))
        return replace(signed, strength=strength, leads=True)
    if _is_all_of_it(warned):
        return replace(_of(text, warned.step), suggestions=(_SCALED,), strength=strength)
    return replace(_of(text, warned.step, known, _clipped(facts, warned.step)), strength=strength)


def _is_all_of_it(warned: Warned) -> bool:
    """Whether each of several samples is as far out: clipped, nothing would be left of any."""
    samples, others = (words.as_number(warned.facts.get(name)) or 0.0 for name in ("samples", "others"))
    return samples > 1 and others + 1 >= samples


_SCALED = Suggestion(
    "All of the batch is as large: look at why its scale is another than that of those before (other units, or not "
    "normalised as they were), and bring it to theirs while loading."
)


def _of_a_sign(warned: Warned, known: str | None) -> Suggestion:
    """Say to mend the batch that went below zero where none before did: clipped by its size it would stay there."""
    whose = "All of the batch is" if _is_all_of_it(warned) else f"{known or 'A sample of it'} is"
    return Suggestion(
        f"{whose} unlike those before, and goes into this: look at what {batches.name_of(warned)} holds there (a "
        "number that stands for what is missing, another unit), and mend it, or leave it out, while loading."
    )


def _clipped(facts: Facts, step: int) -> Suggestion | None:
    """Suggest to clip all of the batch that was unlike the others to about twice what those before held.

    What is left as it is breaks the step as well.
    """
    bounds: dict[str, float] = {}
    call = ""
    for warned in facts.warned:
        largest = words.as_number(warned.facts.get("largest"))
        if (warned.slug, warned.step) == ("batch_outlier", step) and largest:
            name = batches.given(warned) or batches.name_of(warned)
            bounds[name] = max(2 * largest, bounds.get(name, 0.0))
            call = str(warned.facts.get("call") or call)
    return batches.clip(dict(_rounded(bounds)), call)


def _rounded(bounds: dict[str, float]) -> list[tuple[str, str]]:
    """Return each bound with two digits, rounded up: below what came before it would clip honest values."""
    return [(name, f"{_up(bound):g}") for name, bound in bounds.items()]


def _up(bound: float) -> float:
    unit = math.floor(math.log10(bound)) - 1
    return float(f"{math.ceil(bound / 10.0**unit - 1e-9)}e{unit}")


def _of(text: str, step: int, sample: str | None = None, clipped: Suggestion | None = None) -> Cause:
    look = f"the batch of step {step} for values far from the others" if sample is None else f"{sample}"
    return Cause(
        slug="data_outlier",
        evidence=(text,),
        suggestions=(Suggestion(f"Look at {look}, and drop or clip such values while loading."), _NORMALISE)
        if clipped is None
        else (replace(clipped, text=f"Look at {look}, and drop or mend such values while loading. {clipped.text}"),),
        strength=POSSIBLE,
        story=True,
    )


_NORMALISE = Suggestion("Normalise the inputs by statistics of the training set, and clip what lies far out.")

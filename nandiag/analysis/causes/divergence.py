"""Training that ran away before it broke: by its learning rate, by its gradients, or from the weights on (reader side).

The place of the first bad value is chance then. The history tells which it was: a rate that rose, or was too high from
the first step on; gradients that grew behind calm steps; weights that were too large before any update.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nandiag.analysis.causes import apart, line_search, put_together
from nandiag.analysis.causes.course import Course, Row, courses, shown
from nandiag.analysis.causes.facts import HALF, LIKELY, POSSIBLE, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends import multipliers
from nandiag.analysis.causes.mends.scales import own, starts
from nandiag.analysis.causes.mends.steps import clips, rates, reach
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import GroupRate, words

EXPLAIN = (
    Explanation(
        slug="lr_divergence",
        what="The learning rate was too high for the model, so that each update made the loss worse until it left "
        "the range of the dtype. The place of the first Inf is chance: the story is in the history of loss, "
        "gradient norm and learning rate.",
        looks=(
            "error[lr_divergence]: +Inf born on rank 0 at step 9 in the loss code",
            "From step 1 to step 8 the gradient norm grew from 20.46 to 1.14e10 and the loss from 8.65 to 2.02e8.",
            "It grew from the first updates on, at a learning rate of 0.8.",
        ),
        fix=(
            Suggestion(
                "Lower the peak learning rate by a factor of 3 to 10, and warm up.",
                "torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=500)",
            ),
            Suggestion(
                "Find the highest usable one by a range test: from a fresh start, let the rate grow from 1e-7 to 1 "
                "over some hundred steps, and record the loss. It falls, is flat, then rises; take a tenth of the "
                "rate at which it begins to rise.",
                "schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=(1 / 1e-7) ** (1 / 300))",
            ),
            Suggestion(
                "Check what changed the rate's meaning: a sum in the place of a mean, another batch size, a "
                "scheduler stepped each batch that was meant for each epoch.",
            ),
            Suggestion(
                "Clip the gradients as a second line of defence, not as the mend.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
            ),
        ),
        pages=(
            "optim.html",
            "generated/torch.optim.lr_scheduler.LinearLR.html",
            "generated/torch.optim.lr_scheduler.OneCycleLR.html",
            "generated/torch.nn.utils.clip_grad_norm_.html",
        ),
    ),
    Explanation(
        slug="gradient_explosion",
        what="Gradients grew step by step, or within one backward, until numbers left the range of the dtype, "
        "while the learning rate did not rise. Recurrent networks over long sequences, deep stacks without "
        "normalisation, and losses without a bound (a critic, a ratio of probabilities) do so.",
        looks=(
            "error[gradient_explosion]: +Inf born on rank 0 at step 56 in the update of 0.weight and 3 more",
            (
                "From step 34 to step 56 the gradient norm grew from 8.97 to beyond 1.8e19 (float32 does not "
                "hold its square) and the loss from -15.66 to -4.25e28 (optimizer 1 of 2, in the order of their "
                "first steps)."
            ),
            "The learning rate did not rise; it was 0.05.",
        ),
        fix=(
            Suggestion(
                "Clip the norm of the gradients before each update.",
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
            ),
            Suggestion(
                "Under a GradScaler, unscale first.",
                "scaler.unscale_(optimizer)\n"
                "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "scaler.step(optimizer)",
            ),
            Suggestion(
                "Recurrent networks: gates (LSTM, GRU), an orthogonal recurrent matrix, shorter sequences between "
                "detached states.",
            ),
            Suggestion(
                "Deep stacks: normalise in each block, and scale the branch of a residual.",
            ),
        ),
        pages=(
            "generated/torch.nn.utils.clip_grad_norm_.html",
            "notes/amp_examples.html",
            "generated/torch.nn.LayerNorm.html",
            "nn.init.html",
        ),
    ),
)
_STARTS = {"init", "data", "checkpoint"}
# Before any update, a loss or a gradient norm like these comes from the weights, not from the learning rate.
_HUGE = 1e7
# Of a single step: gradients so many times the loss are those of a product over many layers or time steps.
_STEEP = 100.0
# An update so long, of weights that begin around 1, leaves nothing of them.
_LONG = 10.0
# Plain gradients are stable where an update takes off at most so many times the loss, by its slope.
_STABLE = 4.0
# A jump of the loss right behind calm updates is the batch's: data_outlier tells of it.
SUDDEN, CALM_ENOUGH = 100.0, 5
# An op that divides by zero does so in a run that is well, too: it takes more to call it a consequence.
_BEYOND_DOUBT = 1e6
# About twice the root of what float16 ends at: a sum of a few products of two such does not fit it any more.
_USUAL = 512.0


def explain(facts: Facts) -> Cause | None:
    """Name what made the run diverge, where its gradient norm or its loss had grown far before the origin."""
    course = courses(facts.history, *until(facts))
    found = apart.by_rates(facts, _by_course(facts), course)
    if found is not None and (goes_on := rates.restored(facts)):
        found = replace(found, suggestions=(*found.suggestions[:1], *goes_on, *found.suggestions[1:]))
    return put_together.beside(facts, found, rose=bool(course) and course[0].rate_rose)


def _by_course(facts: Facts) -> Cause | None:
    if is_elsewhere(facts, _STARTS) or line_search.went_whole(facts):
        return None
    found = courses(facts.history, *until(facts))
    if not found:
        return None
    course, strength = found[0], LIKELY if _follows(facts, found[0]) else POSSIBLE
    if not course.ran_away:
        return _one_step(facts, course, strength) if len(course.rows) == 1 else _by_leap(facts, course, strength)
    if course.rate_rose:
        return _by_rate(facts, course, strength)
    if course.from_the_start:
        # A loss that each update multiplies by more than the one before is made by these, large as it was at first.
        large = None if course.accelerates else _too_large(facts, course.rows[0], strength)
        return large or _within(facts, course) or _by_rate(facts, course, strength)
    return None if sudden(course) or _by_dtype(facts, course) else _by_growth(facts, course, strength)


def _by_growth(facts: Facts, course: Course, strength: int) -> Cause:
    overshoots = _is_plain(facts, course) and course.overshoot > _STABLE
    return _by_rate(facts, course, strength) if overshoots else _by_gradients(facts, course, strength)


def is_elsewhere(facts: Facts, phases: Collection[str]) -> bool:
    """Whether the course of the run had no part in it: it is of one of these ``phases``, or came in, or grew apart."""
    within = facts.origin.phase in phases and not _is_step_by_hand(facts)
    if within or facts.source in {"input", "buffer"} or facts.basis in {"exchange", "scale"}:
        return True
    if facts.extra.get("heard_before") is True:
        return True  # numpy made it before there was a course
    # It leaves the dtype by itself, whatever it multiplies; or with it a loss of a usual size.
    return multipliers.outgrown(facts) is not None or own.outgrown(facts) is not None


def _is_step_by_hand(facts: Facts) -> bool:
    """Whether it is the loop's own code where no optimizer makes the steps: all of a step is, not its data alone."""
    by_hand = facts.harm is not None and facts.harm.optimizer is None
    return by_hand and facts.origin.phase == "data" and facts.source == "op" and "dataset" not in facts.extra


def _by_dtype(facts: Facts, course: Course) -> bool:
    """Whether values of a usual size left float16 in one op of forward: it is the type that was too small for them.

    What truly runs away brings large values to the op, or grows on beyond any doubt.
    """
    half = any(fact.bad and dtype_of(fact) == "float16" for fact in facts.origin.outputs)
    if not half or facts.node is not None or not overflows(facts):
        return False
    usual = all((fact.absmax or 0.0) <= _USUAL for fact in facts.origin.inputs)
    return usual and max(course.growth, course.loss_growth) < _BEYOND_DOUBT


def until(facts: Facts) -> tuple[int, int]:
    """Return the step before which all counts as the course, and that from which on what is bad does not.

    An update comes behind its own step's gradients: where these were finite, their norm grew to what it was.
    """
    step = facts.origin.step
    behind = step + (facts.origin.phase == "optimizer")
    return behind, step if facts.harm is not None and facts.harm.what == "gradient" else behind


def sudden(course: Course) -> bool:
    """Whether the growth began with a loss that jumped on weights which calm updates had left."""
    return course.calm >= CALM_ENOUGH and course.calm < len(course.rows) and course.jump >= SUDDEN


def _follows(facts: Facts, course: Course) -> bool:
    """Whether the fault at the op is one that large numbers lead to."""
    if facts.source != "op" or overflows(facts) or not facts.finite_inputs:
        return True
    return max(course.growth, course.loss_growth) >= _BEYOND_DOUBT


def _one_step(facts: Facts, course: Course, strength: int) -> Cause | None:
    """A single update lies between the weights as they were made and the fault."""
    (row,) = course.rows
    # What no weight went into, no update can have thrown anywhere.
    if not course.whole or row.norm is None or not overflows(facts) or facts.extra.get("of_weights") is False:
        return None
    large = _too_large(facts, row, strength)
    if large is not None:
        return large
    # Of Adam's kind the update does not grow with the gradient: only its direction, and the learning rate, count.
    plain = _is_plain(facts, course)
    rate = f", times the learning rate {words.number(row.lr)}," if plain and row.lr is not None else ""
    norm, loss = shown(row.norm), words.number(row.loss)
    text = f"At step {row.step} the gradient norm was {norm}, for a loss of {loss}" + (
        f": that{rate} was the last update before." if plain else "."
    )
    # What leaves float32 right behind the first update, and did not before it, was thrown there by it.
    wide = not any(fact.bad and dtype_of(fact) in HALF for fact in facts.origin.outputs)
    if row.norm >= (_STEEP / 10 if wide and plain else _STEEP) * max(abs(row.loss or 0.0), 1.0):
        return Cause(
            "gradient_explosion", (text, *_clips(facts)), _clip(facts, course), strength, story=facts.clip is None
        )
    if plain and wide and (row.lr or 0.0) * row.norm >= _LONG:
        return Cause("lr_divergence", (text,), _slower(facts, course, strength), strength, story=True)
    return None


def _is_plain(facts: Facts, course: Course) -> bool:
    return _kind(facts, course) in rates.BY_THE_NORM


def _kind(facts: Facts, course: Course) -> str | None:
    """Return the class of the optimizer whose course it is: of several it need not be the one with the harm."""
    if course.of > 1 and course.own is not None:
        return course.own.kind
    return facts.harm.optimizer if facts.harm is not None else None


def _by_leap(facts: Facts, course: Course, strength: int) -> Cause | None:
    """The rate of the last update was far above all before: what broke right behind it broke by that."""
    leap = course.leap
    if leap is None or not overflows(facts) or facts.extra.get("of_weights") is False:
        return None
    low, high = (words.number(rate) for rate in leap)
    text = f"The learning rate leapt from {low} to {high} by step {course.rows[-1].step}, right before."
    mend = f"Lower the learning rate: up to {low} nothing grew." if leap[0] else "Let the learning rate rise slowly."
    check = _with_lines(facts, f"{mend} Check what sets it, and what a schedule counts.")
    return Cause("lr_divergence", (text,), (check, *_second_line(facts, course)), strength, story=True)


def _second_line(facts: Facts, course: Course) -> tuple[Suggestion, ...]:
    if facts.clip is not None:
        return ()
    text = "As a second line of defence, clip the gradients before the update"
    return (clips.before(facts, course.own, text),)


def _too_large(facts: Facts, row: Row, strength: int) -> Cause | None:
    if not _is_huge(row):
        return None
    loss = "" if row.loss is None else f"the loss was {words.number(row.loss)}"
    norm = "" if row.norm is None else f"the gradient norm was {shown(row.norm)}"
    text = f"In the first step, before any update, {' and '.join(part for part in (loss, norm) if part)}."
    return Cause("init_scale", (text,), starts.advice(facts), strength, story=True)


def _is_huge(row: Row) -> bool:
    return max(abs(row.loss or 0.0), row.norm or 0.0) >= _HUGE


def _lately(course: Course) -> str:
    """Say in how many steps it rose so, where it had been lower still before: that is not looked back to."""
    return "" if course.rose_lately is None else f" in the last {words.count(course.rose_lately, 'step')}"


def _by_rate(facts: Facts, course: Course, strength: int) -> Cause:
    high, low, then = course.rate_at_end, course.rate_before, course.rate_at_onset
    groups = _groups(facts)
    if groups and not course.rate_rose:
        told = f"It grew from the first updates on. {_told(groups)}"
    elif course.rate_rose:
        began = f"; it was {words.number(then)} when that began" if then is not None else ""
        told = f"The learning rate rose from {words.number(low)} to {words.number(high)}{_lately(course)}{began}."
        told += f" {_told(groups)}" if groups else ""
    elif high is None:
        told = "It grew from the first updates on."
    elif not course.from_the_start:
        told = f"One update at a learning rate of {words.number(high)} took off {course.overshoot:.0f} times the loss, "
        told += f"by the slope of step {course.rows[max(course.calm - 1, 0)].step}: it goes too far."
    else:
        told = f"It grew from the first updates on, at a learning rate of {words.number(high)}."
    evidence = (course.grown(), told, *_besides(facts))
    return Cause("lr_divergence", evidence, _slower(facts, course, strength), strength, story=True)


def _within(facts: Facts, course: Course) -> Cause | None:
    text = reach.too_short(_kind(facts, course), course)
    mends = (reach.BOUND, *_second_line(facts, course))
    return None if text is None else Cause("gradient_explosion", (course.grown(), text), mends, LIKELY, story=True)


def _groups(facts: Facts) -> tuple[GroupRate, ...]:
    """Return the groups with the highest and the lowest learning rate, of the one optimizer that there is."""
    alone = facts.history is None or len(set(facts.history.optimizer)) < 2
    return facts.harm.rates if facts.harm is not None and alone else ()


def _told(groups: tuple[GroupRate, ...]) -> str:
    high, low = (
        f"group {one.group}{f' ({words.few(one.names)})' if one.names else ''} has {{}}{words.number(one.lr)}"
        for one in groups
    )
    return f"Of the optimizer's groups, {high.format('a learning rate of ')}, {low.format('')}."


def _slower(facts: Facts, course: Course, strength: int) -> tuple[Suggestion, ...]:
    """Say which learning rate to try: the one that went well, or a tenth of the one that never did."""
    high, low = course.rate_at_end, course.rate_of_calm
    groups = _groups(facts)
    if groups and not course.rate_rose:
        text = f"Lower the learning rate of group {groups[0].group}: look at what makes it that much larger."
        first = Suggestion(text)
    elif high is None:
        first = Suggestion("Lower the learning rate.")
    elif course.rate_rose and low and course.calm > CALM_ENOUGH:
        text, most = rates.peak(course, low)
        first = _with_lines(facts, f"{text} Check what the schedule counts.", most)
    else:
        first = _lower(facts, course, high, strength)
    scale = Suggestion("Check what scales the loss: a sum in the place of a mean multiplies the learning rate.")
    raw = (starts.NORMALISE,) if course.from_the_start and _is_huge(course.rows[0]) else ()
    return first, *raw, scale, *rates.swept(course), *_second_line(facts, course)


def _lower(facts: Facts, course: Course, high: float, strength: int) -> Suggestion:
    """Say what to begin with where no rate of the run went well: where a schedule sets it, there.

    A schedule writes over what the optimizer is made with: a rate put there would change nothing.
    """
    name = _kind(facts, course) or "the optimizer"
    rate, what = rates.first_try(facts, name, course, high)
    lower = f"Lower the learning rate; {what} is a first try. Then warm up to more."
    if course.rate_rose:
        lower = rates.where_it_rises(course, rate, lines=_is_scheduled(facts))
    if strength < LIKELY:
        lower = f"Where nothing else is meant to make it grow: l{lower[1:]}"
    if course.rate_rose:
        return _with_lines(facts, lower)
    own = f"{course.own.name} = " if course.own is not None and course.own.name and course.of > 1 else ""
    return Suggestion(lower, f"{own}{name}(..., lr={rate})" if name != "the optimizer" else None)


def _is_scheduled(facts: Facts) -> bool:
    """Whether lines of the script's are known that set the learning rate behind the optimizer's making."""
    return facts.compared is not None and bool(facts.compared.rate_set_at)


def _with_lines(facts: Facts, text: str, most: float | None = None) -> Suggestion:
    """Say where the learning rate is set, where the script's text tells; of one line it is told how to bound it."""
    lines = () if facts.compared is None else facts.compared.rate_set_at
    own = None if most is None else rates.bounded(lines, most)
    if own is not None:
        return Suggestion(text, own)
    return Suggestion(f"{text} {rates.set_at(lines)}" if lines else text)


def _by_gradients(facts: Facts, course: Course, strength: int) -> Cause:
    rate = course.rate_at_end
    steady = "" if rate is None else f"The learning rate did not rise; it was {words.number(rate)}."
    told = (course.grown(), *([steady] if steady else []), *_clips(facts), *_besides(facts))
    grown = multipliers.growing(facts)
    mends = (*([] if grown is None else [grown]), *_clip(facts, course))
    return Cause("gradient_explosion", told, mends, strength, story=facts.clip is None)


def _clips(facts: Facts) -> tuple[str, ...]:
    """Say that no update was as large as the gradients were."""
    return () if facts.clip is None else (f"The script clips the gradients to a norm of {words.number(facts.clip)}.",)


def _clip(facts: Facts, course: Course) -> tuple[Suggestion, ...]:
    if facts.clip is not None:
        return (Suggestion("The gradients are clipped already: bound what has no bound, or lower the learning rate."),)
    return (
        clips.before(facts, course.own, "Clip the gradients before each update"),
        Suggestion("Where the norm grows all the same: lower the learning rate, and bound what has no bound."),
    )


def _besides(facts: Facts) -> tuple[str, ...]:
    """Return the largest activation at the last look, where activations were looked at."""
    looked = [value for value in getattr(facts.history, "activation", ()) if value is not None]
    return (f"The largest activation at the last look was {words.number(looked[-1])}.",) if looked else ()

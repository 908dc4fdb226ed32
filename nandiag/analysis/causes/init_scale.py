"""Numbers that leave the dtype in the very first step, with weights as they were initialised (reader side)."""

from __future__ import annotations

from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import HALF, LIKELY, POSSIBLE, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.exponentials import overflowing
from nandiag.analysis.causes.mends.scales import starts
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import Compared, words

EXPLAIN = Explanation(
    slug="init_scale",
    what="The very first step left the range of the dtype, or its gradients were enormous: weights as they were "
    "initialised (or loaded), times inputs as they come, are too large.",
    looks=(
        "error[init_scale]: NaN and Inf born on rank 0 at step 0 in forward of 12.down",
        "It is the first step: the weights are as they were initialised, or loaded.",
    ),
    fix=(
        Suggestion(
            "Check the scale of the initialisation: the deviation should fall with the root of the width.",
            "nn.init.kaiming_normal_(layer.weight)   # std = sqrt(2 / fan_in)",
        ),
        Suggestion(
            "Normalise the inputs; raw amounts, timestamps and pixel values are larger than they look.",
            "x = (x - mean) / (std + 1e-6)",
        ),
        Suggestion(
            "Deep residual stacks: normalise in each block, or begin with branches of weight zero.",
            "nn.init.zeros_(block.down.weight)",
        ),
    ),
    pages=(
        "nn.init.html",
        "generated/torch.nn.LayerNorm.html",
    ),
)


# Where the weights stand among the inputs of a product; usual ones are far below 1.
WEIGHTS = {"addmm": 2, "mm": 1, "linear": 1, "convolution": 1, "matmul": 1}
LARGE_WEIGHT = 5.0


def explain(facts: Facts) -> Cause | None:
    """Point at the initialisation, and the inputs, where step 0 overflows in a module, or at weights that are new."""
    if not overflows(facts):
        return None
    if facts.origin.step:
        return _of_new_weights(facts)
    if facts.origin.global_step or facts.origin.module is None:
        return None
    # Half precision is left by ordinary numbers too, an exponential by an input of 89, and what multiplies no weight by
    # an input that was far too large already.
    narrow = any(fact.bad and dtype_of(fact) in HALF for fact in facts.origin.outputs)
    given, (weights, inputs) = _given(facts), starts.advice(facts)
    inputs = inputs if given is None else _scaled(given)
    mended = overflowing.mends_exponent(facts)
    told = () if given is None else (f"What the model was given goes from {given}.",)
    return Cause(
        slug="init_scale",
        evidence=("It is the first step: the weights are as they were initialised, or loaded.", *told),
        suggestions=() if mended else (weights, inputs) if _has_large_weights(facts) else (inputs, weights),
        strength=LIKELY if facts.op in WEIGHTS and not narrow else POSSIBLE,
        story=True,
    )


def _given(facts: Facts) -> str | None:
    """Return from where to where what the model was given goes, where that is far from 1."""
    ends = facts.extra.get("model_given")
    known = [words.as_number(one) for one in ends] if isinstance(ends, list) and len(ends) == 2 else []
    return None if not known else " to ".join(map(words.number, known))


def _scaled(given: str) -> Suggestion:
    how = "divide by 255, as for pixels" if given == "0 to 255" else "by mean and deviation of the training set"
    return Suggestion(f"Bring what the model is given, {given}, to a size of about 1 before it is called: {how}.")


def _of_new_weights(facts: Facts) -> Cause | None:
    """Weights that no update had been made of before came in where a calm run left the range in one step."""
    compared, step = facts.compared, facts.origin.step
    if compared is None or not compared.fresh or compared.step != step or not facts.is_by_the_model:
        return None
    found = courses(facts.history, step)
    if not all(course.calm == len(course.rows) for course in found):
        return None
    same = ", and what the model was given was no larger than before" if step in compared.batches else ""
    text = f"{new_weights(compared)}{same}."
    check = Suggestion("Look at what these weights were made as, or loaded from: a scale may be missing.")
    return Cause("init_scale", (text,), (check, starts.advice(facts)[0]), LIKELY, story=True)


def new_weights(compared: Compared) -> str:
    """Say of how many parameters no update was made before the step of a harm."""
    some = words.few(list(compared.fresh), compared.fresh_count, most=2)
    new = f"{words.count(compared.fresh_count, 'parameter')} among {compared.total} ({some})"
    return f"No update was made before step {compared.step} of {new}"


def _has_large_weights(facts: Facts) -> bool:
    """Whether the weights of the product are large; else it is what goes in."""
    place = WEIGHTS.get(facts.op or "")
    weights = facts.origin.inputs[place] if place is not None and len(facts.origin.inputs) > place else None
    return weights is not None and (weights.absmax or 0.0) > LARGE_WEIGHT

"""A result larger than the dtype can hold, from finite inputs (reader side)."""

from __future__ import annotations

import math
from dataclasses import replace

from nandiag.analysis.causes import singular_gradient
from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import HALF, LARGEST, LIKELY, PROVEN, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends import multipliers, overgrown, states
from nandiag.analysis.causes.mends.counts import positions
from nandiag.analysis.causes.mends.divisors import spreads
from nandiag.analysis.causes.mends.exponentials import decays, overflowing, recurrences, scans
from nandiag.analysis.causes.mends.scales import casts, own, shrunk
from nandiag.analysis.causes.mends.scales import losses as loss_scales
from nandiag.analysis.causes.mends.script import fitting, widening
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="overflow",
    what="A result is larger than its dtype can hold. float16 ends at 65504, bfloat16 and float32 at about 3.4e38. "
    "The report says what the same op gives in float64: a finite number there means that the dtype alone was "
    "too small. Where the values grew over many steps, or in the first one, the report names that as the "
    "cause and this as the mechanism.",
    looks=(
        "error[overflow]: +Inf born on rank 1 at step 15 in forward of attention",
        "in float64 the result goes to 634321; float16 ends at 65504",
    ),
    fix=(
        Suggestion(
            "In float16: use bfloat16 where the device has it; it has the range of float32, and needs no GradScaler.",
            'with torch.autocast("cuda", dtype=torch.bfloat16):',
        ),
        Suggestion(
            "Or run the op that left the range in float32, and the rest as before.",
            'with torch.autocast("cuda", enabled=False):\n    y = f(x.float())',
        ),
        Suggestion(
            "An exponential that is part of a softmax, a softplus or a log of sums: use torch's own form of it, which "
            "does not overflow. Bound what goes into any other one.",
            "torch.softmax(x, dim=-1)\nF.softplus(x)\ntorch.logsumexp(x, dim=-1)",
        ),
        Suggestion(
            "In float32 the op is rarely at fault: look at what made its input so large (nandiag explain "
            "lr_divergence, gradient_explosion, data_outlier, init_scale).",
        ),
    ),
    pages=(
        "amp.html",
        "notes/amp_examples.html",
        "type_info.html",
        "generated/torch.nn.functional.softmax.html",
        "generated/torch.nn.functional.softplus.html",
        "generated/torch.logsumexp.html",
    ),
)

_OF_DATA = "No gradient goes back from it: it was made of the batch, of constants, or without gradients."
_WHOLE = "Keep whole numbers in float32: bfloat16 has their range, and eight binary digits for them."
_EIGHTHS = frozenset(name for name in LARGEST if name.startswith("float8"))
CASTS = frozenset({"_to_copy", "to", "copy", "type_as"})
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "dot", "mv", "einsum", "addmv"})
# In exact arithmetic these have finite results on finite inputs: a non-finite one has left the range of the dtype.
CONVOLUTIONS = frozenset({"convolution", "conv1d", "conv2d", "conv3d"})
# What autocast makes half is made by these and the convolutions, the rest is the script's own.
_BY_HAND = frozenset({
    "add", "sub", "rsub", "mul", "square", "sum", "cumsum", "mean", "addcmul", "lerp", "prod", "cumprod", "dist",
    "native_layer_norm", "embedding", "linalg_vector_norm", "addr", "neg", "mse_loss",
})  # fmt: skip
ARITHMETIC = PRODUCTS | CONVOLUTIONS | _BY_HAND
LINEAR_MODULES = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear", "ConvTranspose2d", "LazyLinear"})
_WITHOUT_SCALE = "GradScaler multiplied the loss by {}; run again without that, the step is finite."
_LOOPED = "What the model was given here the loop itself had made in this step, of what the model gave before: at {}."
_SMALLER = Suggestion(
    "Look at that line: take smaller steps there, or bound what it makes; what it began with may be far out already."
)
_SPREADS = frozenset({"var", "std", "var_mean", "std_mean"})


def explain(facts: Facts) -> Cause | None:
    """Name the dtype and the op that left its range, where finite inputs gave a non-finite result."""
    bad = next((fact for fact in facts.origin.outputs if fact.bad), None)
    if bad is None or not _are_finite(facts) or facts.bad_numbers or not facts.origin.inputs[0].numel:
        return None
    if singular_gradient.near_zero(facts) is not None:
        return None  # to bring values down, as is to be done about others, would make it worse
    limit = LARGEST.get(dtype_of(bad))
    wide = facts.extra.get("float64_finite")
    # An exponential of 1800, or a power, leaves float64 too, and is an overflow all the same.
    elsewhere = wide is False and dtype_of(bad) != "float64" and facts.op not in {*overflowing.OPS, "pow"}
    if limit is None or elsewhere:
        return None
    if wide is True:
        return _cause(facts, _widened(facts, dtype_of(bad), limit), dtype_of(bad), PROVEN)
    given = max(facts.origin.inputs, key=lambda fact: fact.absmax or 0.0)
    text = _text(facts, given, dtype_of(bad), limit)
    return None if text is None else _cause(facts, text, dtype_of(bad), LIKELY if facts.op is None else PROVEN)


def _are_finite(facts: Facts) -> bool:
    """Whether all inputs are finite, or an exponential's but for a mask: of -inf it makes 0."""
    masked = facts.op in overflowing.OPS and all(fact.only_neginf or not fact.bad for fact in facts.origin.inputs)
    return facts.finite_inputs or (masked and bool(facts.origin.inputs))


def overflows(facts: Facts) -> bool:
    """Whether the origin is an overflow at its op."""
    return facts.source == "op" and explain(facts) is not None


def _text(facts: Facts, given: TensorFact, dtype: str, limit: float) -> str | None:
    largest = words.number(given.absmax)
    most = f"{dtype} ends at {words.number(limit)}"
    if facts.op in overflowing.OPS:
        border = math.log(limit, overflowing.OPS[facts.op])
        low = facts.op in overflowing.EVEN and -(given.min or 0.0) > (given.max or 0.0)
        end, edge = (given.min, f"below {-border:.1f}") if low else (given.max, f"above {border:.1f}")
        over = f"the input of {facts.op} goes to {words.number(end)}; in {dtype} it overflows {edge}"
        return over if (given.absmax or 0.0) > border else None
    if facts.op in CASTS:
        return f"a value of {largest} is cast to {dtype}; {most}" if (given.absmax or 0.0) > limit else None
    if facts.op in ARITHMETIC or (facts.op in _SPREADS and (given.absmax or 0.0) ** 2 > limit):
        return f"finite inputs up to {largest} give a result beyond {dtype}; {most}"
    if facts.op == "pow":
        return _power(facts, dtype, most)
    if facts.op is None and facts.origin.module_class in LINEAR_MODULES and dtype in HALF:
        return f"finite inputs up to {largest} give a result that is not finite; {most}"
    return None


def _power(facts: Facts, dtype: str, most: str) -> str | None:
    """A power of one tensor to another: infinite by its size, but where it may be 0 to a power below 0."""
    if len(facts.origin.inputs) != 2 or facts.outputs_nan:
        return None
    base, exponent = facts.origin.inputs
    if base.zeros and (exponent.min is None or exponent.min < 0.0):
        return None
    large = (base.absmax or 0.0) > 1.0
    end = f"up to {words.number(base.absmax)}" if large else f"down to {words.number(base.absmin)}"
    return f"the power of finite values {end} is beyond {dtype}; {most}"


def _widened(facts: Facts, dtype: str, limit: float) -> str:
    """Say what the same op on the same inputs gave in float64."""
    largest = facts.number("float64_absmax")
    if largest is None or largest <= limit:
        return f"in float64 the same op is finite; on the way {dtype} was left, which ends at {words.number(limit)}"
    what = "gradient" if facts.node is not None else "result"
    return f"in float64 the {what} goes to {words.number(largest)}; {dtype} ends at {words.number(limit)}"


def _cause(facts: Facts, text: str, dtype: str, strength: int) -> Cause:
    if (scaled := loss_scales.alone(facts)) is not None:
        without = _WITHOUT_SCALE.format(words.number(facts.scale_alone))
        range_of_float32 = (_bfloat16(facts),) if dtype == "float16" else ()
        return Cause("overflow", (text, without), (scaled, *range_of_float32), strength, leads=True)
    if facts.overgrown is not None:
        return overgrown.of_a_weight(facts, facts.overgrown, text, strength)
    product = recurrences.scaled(facts) or (scans.as_loop(facts.origin) if facts.op == "exp" else None)
    product = product or (scans.of_product(facts) if facts.op == "div" else None)
    product = multipliers.outgrown(facts) or product or states.mended(facts)
    product = (
        product or decays.both_ways(facts) or positions.alone(facts) or (_mask(facts) if dtype == "bfloat16" else None)
    )
    if product is not None:
        return Cause("overflow", (text,), (product,), strength, leads=True)
    general = dtype not in {"float16", *_EIGHTHS} and facts.op not in overflowing.OPS
    if general and facts.looped is not None:
        return Cause("overflow", (text, _LOOPED.format(facts.looped)), (_SMALLER,), strength, leads=True)
    leads = facts.op in overflowing.OPS and overflowing.in_one_step(facts) is not None
    by = shrunk.told(facts)
    if facts.extra.get("of_weights") is not False or facts.origin.phase not in {"forward", "loss"}:
        return Cause("overflow", (text, *by), _advice(facts, dtype), strength, general=general and not by, leads=leads)
    # Behind a form that gives the same numbers and cannot overflow no batch is too large for it.
    advice, data = _advice(facts, dtype), () if leads else _of_data(facts)
    # What a wider dtype holds, or torch's own form of it, is no matter of the data.
    wide = dtype == "float16" and _fits_float32(facts)
    mends = (*advice, *data) if wide or _fits_the_line(facts) else (*data, *advice)
    # What another rank was given may come back as a gradient, by a message.
    text_of_data = () if "handed_on" in facts.extra else (_OF_DATA,)
    return Cause("overflow", (text, *by, *text_of_data), mends, strength, general=general)


def _of_data(facts: Facts) -> tuple[Suggestion, ...]:
    """Say to look at the batch of the step; nothing where an outlier was seen in it: its own cause tells of that."""
    step = facts.origin.step
    if any((one.slug, one.step) == ("batch_outlier", step) for one in facts.warned):
        return ()
    return (Suggestion(f"Look at the batch of step {step}, or the constants, that this is computed from."),)


def _advice(facts: Facts, dtype: str) -> tuple[Suggestion, ...]:
    if dtype == "float16" and _fits_float32(facts):
        return _half(facts)
    if (scaled := own.outgrown(facts)) is not None:
        return (scaled,)
    divided = spreads.left_eps(facts)
    if facts.op in overflowing.OPS:
        return (*([divided] if divided is not None else []), *overflowing.suggestions(facts, dtype))
    if divided is not None:
        return (divided,)
    if dtype in _EIGHTHS and facts.op in CASTS:
        return _saturated(facts, dtype)
    return shrunk.mended(facts) or (Suggestion(_down(facts)),)


def _down(facts: Facts) -> str:
    """No gradient of a step before is to blame where all were calm, or where what went in is of ordinary size."""
    if _was_calm(facts):
        return _WITHIN if facts.node is None and facts.origin.phase in {"forward", "loss"} else _DOWN
    ordinary = max((fact.absmax or 0.0 for fact in facts.origin.inputs), default=0.0) < _ORDINARY
    return _DOWN if ordinary else _DOWN_BY_GRADIENTS


_ORDINARY = 1e3
_DOWN = "Bring the values down before this op: normalise or clamp them where they are made."
_DOWN_BY_GRADIENTS = "Bring the values down before this op: normalise, clamp, or clip the gradients of earlier steps."
_WITHIN = (
    "Neither loss nor gradients grew before: bring the values down within this step, normalise or clamp them before "
    "this op. Where a loop made them (a solver, a recurrence, a state that is carried on) take smaller steps there, or "
    "bound its state."
)


def _was_calm(facts: Facts) -> bool:
    """Whether steps before are known, and neither loss nor gradients grew in any of them."""
    found = courses(facts.history, facts.origin.step)
    return bool(found) and all(course.rows and course.calm >= len(course.rows) for course in found)


def _fits_float32(facts: Facts) -> bool:
    """Whether a dtype with the range of float32 would have held the result, as far as it is known."""
    limit, largest = LARGEST["float32"], facts.number("float64_absmax")
    if facts.extra.get("float64_finite") is False or (largest or 0.0) > limit:
        return False
    if largest is not None or facts.op not in overflowing.OPS:
        return True
    sizes = (fact.absmax if facts.op in overflowing.EVEN else fact.max for fact in facts.origin.inputs)
    given = max((size for size in sizes if size is not None), default=0.0)
    return given <= math.log(limit, overflowing.OPS[facts.op])


def _half(facts: Facts) -> tuple[Suggestion, ...]:
    wide = _bfloat16(facts)
    of_loss = _of_the_loss(facts, wide)
    if of_loss:
        return of_loss
    if facts.op in CASTS:
        return _cast(facts, wide)
    if facts.origin.phase == "optimizer":
        return (Suggestion(_IN_FLOAT32, f"{facts.called('handed', 'model')}.float()"), wide)
    masked, lifted = _mask(facts), _own_half(facts)
    if masked is not None or lifted is not None:
        return tuple(one for one in (masked, lifted or wide) if one is not None)
    bounds = overflowing.suggestions(facts, "float16") if facts.op in overflowing.OPS else ()
    if bounds and _fits_the_line(facts):
        return (*bounds, wide, _lifted(facts))
    return (wide, _lifted(facts), *bounds)


def _of_the_loss(facts: Facts, wide: Suggestion) -> tuple[Suggestion, ...]:
    """Say what the loss makes a gradient too large by: no line of the script's makes the operands of one."""
    scaled, summed = own.outgrown(facts) or loss_scales.by_script(facts), facts.extra.get("loss_summed") is True
    if scaled is not None:
        return (scaled, wide)
    if facts.node is None or facts.op not in {*PRODUCTS, *CONVOLUTIONS, "sum"}:
        return ()
    return (wide, _MEAN) if summed else (wide,) if not loss_scales.under_autocast(facts) else ()


def _own_half(facts: Facts) -> Suggestion | None:
    """Say how to bring to float32 what the script itself had made half, of the batch, under an autocast."""
    if (
        not loss_scales.under_autocast(facts)
        or facts.extra.get("of_weights") is not False
        or facts.op not in _BY_HAND | {"pow"}
    ):
        return None
    text = f"Run {facts.op} in float32: what came in was half already, whatever autocast computes in."
    return replace(_lifted(facts), text=text)


_IN_FLOAT32 = (
    "Keep the weights and the optimizer in float32, and so what the model is called with (leave out its .half())."
)
_MEAN = Suggestion(
    'Or let the loss be a mean, not a sum (.mean(), reduction="mean"): its gradients grow with the count of what it '
    "adds up. The learning rate is then to be larger by as much."
)


_SMALL = 1 << 20
_SMALL_RANGE = "Keep this tensor in float32, or in bfloat16, which has its range and fewer digits."
_RANGE = "Keep this tensor in bfloat16, which has the range of float32, or in float32."


def _fits_the_line(facts: Facts) -> bool:
    """Whether torch has a form of what the line, with those behind it, writes out by hand."""
    return facts.op in overflowing.OPS and overflowing.instead(facts) is not None


def _cast(facts: Facts, wide: Suggestion) -> tuple[Suggestion, ...]:
    if facts.origin.phase == "collective":
        return ()  # a hook's cast is in no line of the script's: what is to be done about the hook is
    if facts.node is not None:
        return (wide,)  # autograd casts a gradient as forward had cast what it is of: no line of the script's does
    if (bound := casts.bound(facts)) is not None:
        return bound
    if "int" in dtype_of(facts.origin.inputs[0]):
        whole = widening.brought_to(facts.origin, "float32")
        return (Suggestion(_WHOLE, whole or "x.float()"),)
    small = facts.origin.inputs[0].numel <= _SMALL  # where memory is no matter, float32 keeps the digits as well
    whole = widening.brought_to(facts.origin, "float32" if small else "bfloat16")
    if whole is not None:
        return (Suggestion(_SMALL_RANGE if small else _RANGE, whole),)
    return Suggestion("Keep this tensor in float32, or bring it to scale first.", "(x / scale).half()"), wide


def _saturated(facts: Facts, dtype: str) -> tuple[Suggestion, ...]:
    """Casts to eight bits by hand are to end at the largest number, and a scale keeps that from being needed."""
    end = words.number(LARGEST[dtype])
    code = fitting.argument(facts.origin, "to", lambda text: f"{text}.clamp(-{end}, {end})")
    bound = Suggestion(f"End at the largest that {dtype} holds.", code or f"x.clamp(-{end}, {end}).to(torch.{dtype})")
    scale = f"scale = {end} / x.detach().abs().amax().clamp_min(1e-12)"
    return bound, Suggestion("Or choose the scale by the largest value, so that nothing is cut.", scale)


def _mask(facts: Facts) -> Suggestion | None:
    """A mask times a number that a half precision rounds to -inf: what is masked all over becomes NaN.

    Of float16 that is -1e9 already, of bfloat16 the least number of float32.
    """
    dtype = dtype_of(facts.origin.outputs[0])
    given, number = facts.origin.inputs[0], facts.number("arg1")
    is_mask = len(facts.origin.inputs) == 1 and given.min == 0.0 and given.max == 1.0
    if facts.op != "mul" or not is_mask or number is None or number >= -LARGEST[dtype]:
        return None
    text = (
        f"{words.number(number)} is -inf in {dtype}, and the softmax of a row that is masked all over is NaN then: "
        "take the least number of the dtype."
    )
    least = f"torch.finfo(torch.{dtype}).min"
    return Suggestion(text, fitting.factor(facts.origin, least) or f"mask * {least}")


def _bfloat16(facts: Facts) -> Suggestion:
    """Say how to use bfloat16: a GPU may lack it, a CPU has it; a scaler is of no use then."""
    device = _device(facts)
    scales = facts.history.scale if facts.history is not None else ()
    scaled = facts.skip is not None or any(scale is not None for scale in scales)
    where = " where the GPU has it (torch.cuda.is_bf16_supported())" if device == "cuda" else ""
    without = ", and needs no GradScaler" if scaled else ""
    text = f"Use bfloat16{where}: it has the range of float32{without}."
    if facts.extra.get("autocast") is False:
        asked = "The step was not under autocast: ask for it where the script asks for float16 (.half(), param_dtype)."
        return Suggestion(f"{text} {asked}")
    return Suggestion(text, f'torch.autocast("{device}", dtype=torch.bfloat16)')


def _lifted(facts: Facts) -> Suggestion:
    """Say how to run the op in float32, where the replay has shown it finite, or its inputs fit well."""
    op, device = facts.op or "this part", _device(facts)
    if facts.op is None or facts.op in PRODUCTS | CONVOLUTIONS:
        if facts.extra.get("autocast") is False:  # what follows has operands of float16 still, and would raise
            below = "attention divides them by the root of its width"
            return Suggestion(f"Or bring the operands of {op} down before it, as {below}.")
        code = f'with torch.autocast("{device}", enabled=False): y = f(x.float())'
        return Suggestion(
            f"Or run {op} in float32, outside of autocast.", widening.outside_autocast(facts.origin, device) or code
        )
    given = fitting.argument(facts.origin, op, lambda text: f"{text}.float()")
    return Suggestion(f"Or run {op} in float32.", widening.operands(facts.origin) or given or "x.float()")


def _device(facts: Facts) -> str:
    return (facts.origin.device or "cuda").partition(":")[0]

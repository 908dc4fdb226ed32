"""A result larger than the dtype can hold, from finite inputs (reader side)."""

from __future__ import annotations

import math

from nandiag.analysis.causes.facts import HALF, LARGEST, LIKELY, PROVEN, Cause, Facts, dtype_of
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPONENTIALS = {"exp": math.e, "expm1": math.e, "sinh": math.e, "cosh": math.e, "exp2": 2.0}
CASTS = frozenset({"_to_copy", "to", "copy", "type_as"})
# In exact arithmetic these have finite results on finite inputs: a non-finite one has left the range of the dtype.
ARITHMETIC = frozenset(
    {"add", "sub", "mul", "square", "mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "dot", "mv", "sum", "cumsum"}
    | {"mean", "convolution", "conv1d", "conv2d", "conv3d", "einsum", "addcmul", "lerp", "prod", "cumprod", "dist"}
    | {"native_layer_norm", "embedding", "linalg_vector_norm", "var", "addmv", "addr", "neg"}
)
LINEAR_MODULES = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d", "Bilinear", "ConvTranspose2d", "LazyLinear"})


def explain(facts: Facts) -> Cause | None:
    """Name the dtype and the op that left its range, where finite inputs gave a non-finite result."""
    bad = next((fact for fact in facts.origin.outputs if fact.bad), None)
    if bad is None or not facts.finite_inputs or facts.origin.node is not None:
        return None
    limit = LARGEST.get(dtype_of(bad))
    wide = facts.extra.get("float64_finite")
    if limit is None or (wide is False and dtype_of(bad) != "float64"):
        return None
    if wide is True:
        return _cause(_widened(facts, dtype_of(bad), limit), dtype_of(bad), PROVEN)
    given = max(facts.origin.inputs, key=lambda fact: fact.absmax or 0.0)
    text = _text(facts, given, dtype_of(bad), limit)
    return None if text is None else _cause(text, dtype_of(bad), LIKELY if facts.op is None else PROVEN)


def _text(facts: Facts, given: TensorFact, dtype: str, limit: float) -> str | None:
    largest = words.number(given.absmax)
    most = f"{dtype} ends at {words.number(limit)}"
    if facts.op in EXPONENTIALS:
        border = math.log(limit, EXPONENTIALS[facts.op])
        over = f"the input of {facts.op} goes to {words.number(given.max)}; in {dtype} it overflows above {border:.1f}"
        return over if (given.absmax or 0.0) > border else None
    if facts.op in CASTS:
        return f"a value of {largest} is cast to {dtype}; {most}" if (given.absmax or 0.0) > limit else None
    if facts.op in ARITHMETIC:
        return f"finite inputs up to {largest} give a result beyond {dtype}; {most}"
    if facts.op is None and facts.origin.module_class in LINEAR_MODULES and dtype in HALF:
        return f"finite inputs up to {largest} give a result that is not finite; {most}"
    return None


def _widened(facts: Facts, dtype: str, limit: float) -> str:
    """Say what the same op on the same inputs gave in float64."""
    largest = facts.extra.get("float64_absmax")
    if not isinstance(largest, int | float) or largest <= limit:
        return f"in float64 the same op is finite; on the way {dtype} was left, which ends at {words.number(limit)}"
    return f"in float64 the result goes to {words.number(largest)}; {dtype} ends at {words.number(limit)}"


def _cause(text: str, dtype: str, strength: int) -> Cause:
    if dtype == "float16":
        fix = Suggestion(
            "Use bfloat16, which has the range of float32, or run this part in float32.", "dtype=torch.bfloat16"
        )
    else:
        fix = Suggestion("Bring the values down before this op: subtract the maximum, normalise, or clamp.")
    return Cause("overflow", (text,), (fix,), strength)

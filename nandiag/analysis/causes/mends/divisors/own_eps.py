"""What divides by a size of its own: functions of torch's whose eps is 0, and a weight in place (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients, widening
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_ROUNDED = "Its eps is itself 0 in float16: have it computed in float32."
_NONE = "Its eps is 0: give it one that is not."
_SQUARE_LEAVES = 1e18  # float32; these compute in no less
_NORMS = frozenset({"native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm"}) | frozenset(
    {"_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm", "miopen_batch_norm"}
)


def of_norm(facts: Facts) -> Suggestion | None:
    """Say how a normalisation whose eps is 0 gets one; ``None`` where the origin is none, or its eps is not 0."""
    places = [int(name[3:]) for name in facts.extra if name.startswith("arg") and name[3:].isdigit()]
    if facts.op not in _NORMS or facts.node is not None or not facts.outputs_nan or not places:
        return None
    if type(facts.extra[f"arg{max(places)}"]) is not float or facts.number(f"arg{max(places)}") != 0.0:
        return None  # eps is the last of the numbers that they are given
    if (facts.origin.inputs[0].absmax or 0.0) >= _SQUARE_LEAVES:
        return None  # then the variance left the dtype
    own = mended(facts, facts.origin.inputs[0])
    return own[0] if own else _made(facts)


def _made(facts: Facts) -> Suggestion:
    """Say where the layer is made that the line calls, as far as the text shows it."""
    found = fitting.parsed(facts.origin)
    called = found[1].func if found is not None and isinstance(found[1], ast.Call) else None
    own = (facts.origin.module or "").rpartition(".")[2]
    if not isinstance(called, ast.Attribute) or called.attr != own:
        return Suggestion(_NONE, f"torch.nn.{facts.origin.module_class or 'LayerNorm'}(..., eps=1e-5)")
    name = ast.unparse(called)
    lines = facts.written(name)
    where = f", where {name} is made ({words.lines(lines)})" if lines else ""
    return Suggestion(f"{_NONE[:-1]}{where}.", f"{name}.eps = 1e-5")


def mended(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """Say how the underlined call of such a function divides by zero no more; nothing where it is none."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call):
        return ()
    name = ast.unparse(found[1].func).rpartition(".")[2]
    known = widening.WITH_EPS.get(name)
    if known is None:
        return ()
    given = next((word.value for word in found[1].keywords if word.arg == "eps"), None)
    if isinstance(given, ast.Constant) and given.value == 0:
        first, last = given.col_offset, given.end_col_offset or 0
        line = fitting.whole(facts.origin, f"{found[0][:first]}{known.eps}{found[0][last:]}")
        return (Suggestion(_NONE, line),)
    if dtype_of(divisor) != "float16":
        return ()
    wide = widening.operands(facts.origin)
    return (Suggestion(_ROUNDED, wide or f"torch.nn.functional.{name}(x.float(), ...)"),)


def of_hook(facts: Facts) -> tuple[Suggestion, ...]:
    """Say how a communication hook of torch's, which the line registers, divides by zero no more; nothing elsewhere."""
    hook, found = facts.extra.get("comm_hook"), fitting.parsed(facts.origin)
    call = found[1] if found is not None and isinstance(found[1], ast.Call) else None
    if not isinstance(hook, str) or call is None or not ast.unparse(call.func).endswith("register_comm_hook"):
        return ()
    bad = [fact.name for fact in facts.harm.tensors if fact.name and fact.bad] if facts.harm is not None else []
    of = f", as that of {words.few(bad, most=2)} may be" if bad else ""
    zero = f"a gradient that is 0 throughout{of}"
    if "powersgd" not in hook.lower():
        return (Suggestion(f"{hook} divides by a size of what it exchanges: look at {zero}."),)
    text = f"{hook} divides by a length, which is 0 for {zero}: give its state an epsilon."
    if "batched" in hook:  # which leaves the epsilon of its state unused
        text = f"{hook} divides by a length, which is 0 for {zero}. Take powerSGD_hook, and give its state an epsilon."
    return (Suggestion(text, _with_epsilon(facts, call)),)


def _with_epsilon(facts: Facts, call: ast.Call) -> str:
    """Return the line that makes the state of PowerSGD, with an epsilon."""
    given = call.args[0] if call.args else None
    known = facts.meaning(given.id) if isinstance(given, ast.Name) else None
    made = given if known is None else parsing.expression(known.text)
    if not isinstance(made, ast.Call) or not ast.unparse(made.func).endswith("PowerSGDState"):
        return f"PowerSGDState(process_group, {_EPSILON}=1e-8)"
    kept = [word for word in made.keywords if word.arg != _EPSILON]
    own = ast.Call(made.func, made.args, [*kept, ast.keyword(_EPSILON, ast.Constant(1e-8))])
    code = ast.unparse(own)
    return f"{known.name} = {code}" if known is not None else code


_EPSILON = "orthogonalization_epsilon"


def by_zero(facts: Facts) -> Cause | None:
    """Say that ``p.div_(p.norm())`` gave NaN: what is finite, divided by its own size, is so only as 0/0."""
    left = facts.origin.outputs[0] if facts.origin.outputs else None
    found = fitting.parsed(facts.origin)
    below = None if found is None else quotients.divided_by(found[1])
    if facts.extra.get("written_in_place") not in _DIVISIONS or left is None or below is None:
        return None
    own = [of for size in _OWN_SIZES if (of := fitting.target(below, size)) is not None]
    if not left.nan or left.posinf or left.neginf or not own:
        return None
    row = _only_row(left)
    where = "it left NaN" if row is None else f"row {row} of {left.shape[0]} is NaN throughout"
    seen = f"{where}, which a size of 0 makes of what is 0 throughout: 0/0"
    mend = quotients.divisor(facts.origin, "{}.clamp_min(1e-6)".format)
    return Cause("division_by_zero", (seen,), (Suggestion("Keep the divisor away from zero.", mend),), LIKELY)


def _only_row(left: TensorFact) -> int | None:
    """Return the one row that is bad, where as many are as it holds and begin with it; a column begins in the first."""
    first = left.first_bad
    if not first or len(left.shape) < 2 or left.nan != left.numel // left.shape[0]:
        return None
    return first[0] if first[0] and not any(first[1:]) else None


_DIVISIONS = frozenset({"div_", "__itruediv__", "true_divide_", "divide_"})
_OWN_SIZES = ("norm", "sum", "std", "var", "vector_norm")

"""A function outside its domain: log or sqrt of a negative number, acos beyond 1 (reader side)."""

from __future__ import annotations

import ast
import posixpath
from dataclasses import replace

from nandiag.analysis.causes import outside, second_moments
from nandiag.analysis.causes.facts import Cause, Facts, dtype_of
from nandiag.analysis.causes.mends import learnt, variances
from nandiag.analysis.causes.mends.divisors import corrections
from nandiag.analysis.causes.mends.logarithms import shared, signs
from nandiag.analysis.causes.mends.matrices import covariances, determinants, factors
from nandiag.analysis.causes.mends.script import bounding, fitting, guards, meanings, parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="domain_error",
    what="A function was given a number outside of what it is defined for: the logarithm or the root of a negative "
    "number, acos beyond 1, a negative number to a fractional power. Often rounding alone does it (a variance "
    "of -1e-9, a cosine of 1.0000001). So was an operation that has no value for infinities: 0 times inf, inf less "
    "inf, as where a mask of -inf meets its own exponential.",
    looks=(
        "error[domain_error]: NaN born on rank 0 at step 20 in forward of module 0 (BatchStandard)",
        "the input of sqrt goes to -448, outside its domain; the result is NaN",
    ),
    fix=(
        Suggestion(
            "Find out why the value leaves the domain; where rounding alone does it, clamp it.",
            "torch.sqrt(v.clamp_min(0) + 1e-12)\ntorch.acos(c.clamp(-1 + 1e-6, 1 - 1e-6))",
        ),
        Suggestion(
            "Where the model itself makes the number, let it make one that is positive by construction.",
            "F.softplus(z) + 1e-6",
        ),
    ),
    pages=(
        "generated/torch.clamp.html",
        "generated/torch.nn.functional.softplus.html",
        "generated/torch.acos.html",
    ),
)

# op -> lowest and highest argument that it is defined for, and what keeps the argument there
DOMAINS: dict[str, tuple[float | None, float | None, str]] = {
    "log": (0.0, None, "clamp_min(1e-12)"),
    "log2": (0.0, None, "clamp_min(1e-12)"),
    "log10": (0.0, None, "clamp_min(1e-12)"),
    "log1p": (-1.0, None, "clamp_min(-1 + 1e-6)"),
    "sqrt": (0.0, None, "clamp_min(1e-12)"),
    "rsqrt": (0.0, None, "clamp_min(1e-12)"),
    "acos": (-1.0, 1.0, "clamp(-1 + 1e-6, 1 - 1e-6)"),
    "asin": (-1.0, 1.0, "clamp(-1 + 1e-6, 1 - 1e-6)"),
    "atanh": (-1.0, 1.0, "clamp(-1 + 1e-6, 1 - 1e-6)"),
    "erfinv": (-1.0, 1.0, "clamp(-1 + 1e-6, 1 - 1e-6)"),
    "acosh": (1.0, None, "clamp_min(1 + 1e-6)"),
    "logit": (0.0, 1.0, "clamp(1e-6, 1 - 1e-6)"),
    "xlogy": (0.0, None, "clamp_min(1e-12)"),
    "special_entr": (0.0, None, "clamp_min(0)"),
}
# At these ends the function itself is infinite.
POLES = {"atanh": (-1.0, 1.0), "logit": (0.0, 1.0), "erfinv": (-1.0, 1.0)}
_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm"}
    | {"cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update"}
)
_LOGS = frozenset({"log", "log2", "log10"})
_GAMMAS = frozenset({"lgamma", "digamma", "polygamma", "mvlgamma", "special_gammaln", "special_psi"})
_POSITIVE = _LOGS | {"sqrt", "rsqrt"}
_SOFTPLUS = "torch.nn.functional.softplus"
_CHOSEN = (
    "torch.where takes it for some values alone, but it is computed for all, and what it leaves out has a gradient of "
    "NaN: keep the argument within the domain before."
)
_NO_ROUNDING = (
    "Find out why the square that is taken off is larger than what it is taken off: a clamp keeps the step going, and "
    "no more."
)
_PLUS = "let it make a number that is positive by construction."
_CHANCE = "let it make a number between 0 and 1 by construction."
_LINEAR = frozenset({"Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "Linear", "Addmv", "Mv", "Dot"})
_LOOKS = frozenset(
    {"View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Select", "Slice", "Split", "SplitWithSizes", "Unbind"}
    | {"Permute", "Transpose", "T", "Expand", "Alias", "Clone", "ToCopy", "Chunk", "Index"}
)
# In float16 what is smaller may be 0.
_ROUNDS_AWAY = 1e-6
# Rounding alone does not lead as far below 0.
_ROUNDED = -1e-4
_FAR = 1e-3
# Of use as the spread of what is learnt, and one over its square is no huge number.
_OF_SCALES = "1e-3"
_HIDDEN = (
    "Forward had made NaN there already. What hid it (nansum, a where, a mask) does so for the loss alone: the "
    "gradient is NaN all the same."
)
_NO_MORE = "A clamp keeps the step going, and no more."
_WHY = "Find out why the value leaves the domain, and where rounding alone does it, clamp it:"
_PARAMETRISED = Suggestion(
    f"Where the model itself makes it, let it make a number that is positive by construction, by {_SOFTPLUS}."
)


def explain(facts: Facts) -> Cause | None:
    """Name the argument that lies outside the op's domain where the op gave NaN, or at a pole where it gave Inf."""
    turned = determinants.turned_over(facts)
    if turned is None:
        return _of_gradient(facts) if facts.node is not None else _of_argument(facts)
    short, lost = "the determinant is negative, and logdet is NaN there", covariances.told(facts)
    if lost is None:
        return Cause("domain_error", (short,), (turned,))
    mends = covariances.mends(facts)
    if covariances.is_shown(facts):
        return Cause("domain_error", (short, lost), mends)
    first = replace(mends[0], text=f"Where it is to be a covariance, or a kernel: {mends[0].text}")
    other = replace(turned, text=f"Where it may have eigenvalues of any sign, as a Hessian: {turned.text}")
    return Cause("domain_error", (short, lost), (other, first, *mends[1:]))


def _of_gradient(facts: Facts) -> Cause | None:
    """Name what the function itself was given, where its gradient's formula left the domain by it."""
    behind = outside.as_forward(facts)
    found = None if behind is None else _of_argument(behind)
    return None if found is None else replace(found, evidence=(*found.evidence, _HIDDEN))


def _of_argument(facts: Facts) -> Cause | None:
    if not facts.finite_inputs:
        return None
    op = facts.op or ""
    given = facts.origin.inputs[-1 if op == "xlogy" else 0]
    if op in _NORMS and facts.outputs_nan:
        return _negative_variance(facts, facts.origin.inputs[-1], op)
    if op == "pow" and facts.outputs_nan:
        return _root_of_a_negative(facts, given)
    domain = DOMAINS.get(op)
    if domain is None:
        return _at_zero(facts, op, given) if op in _GAMMAS and given.zeros else None
    low, high, guard = domain
    whole = op == "sqrt" and "int" in dtype_of(given)
    guard = guard.replace("1e-12", "0" if whole else guards.least(given))
    outside = _outside(given, low, high)
    if facts.outputs_nan and outside is not None:
        text = f"the input of {op} goes to {words.number(outside)}, outside its domain; the result is NaN"
    elif poles := _poles(op, given):
        text = f"the input of {op} is {' and '.join(map(words.number, poles))} in places; the result is infinite there"
    else:
        return None
    of_state = second_moments.explain(facts) is not None  # then a clamp would hide what was loaded wrong
    mends = () if of_state else _suggestions(facts, op, guard)
    return Cause("domain_error", (text,), mends, alone=factors.learnt_noise(facts) in mends)


def _far(facts: Facts, op: str, clamped: Suggestion) -> tuple[Suggestion, ...]:
    """Say by how much it lies outside where that is no rounding: a clamp comes last then."""
    low, high, _ = DOMAINS[op]
    given = facts.origin.inputs[0]
    below, above = (
        ((low or 0.0) - (given.min or 0.0) if low is not None else 0.0),
        ((given.max or 0.0) - high if high is not None else 0.0),
    )
    if max(below, above) <= max(_FAR, _FAR * (given.absmax or 0.0)):
        return (clamped,)
    off = f"{words.number(below)} below {words.number(low)}" if below >= above else None
    off = off or f"{words.number(above)} above {words.number(high)}"
    why = f"Find out why the value leaves the domain: it lies {off}, by more than rounding makes. What it is "
    why += "made of is to be kept where it belongs, behind each update, say, or by how it is made."
    last = "A clamp keeps the step going, no more: what is outside gets no gradient that would lead it back."
    return (Suggestion(why), replace(clamped, text=last))


def _suggestions(facts: Facts, op: str, guard: str) -> tuple[Suggestion, ...]:
    alone = None if bounding.is_chosen(facts.origin) else _alone(facts, op)
    if alone is not None:
        return (alone,)
    first, own_eps = _clamped(facts, op, guard)
    if bounding.is_chosen(facts.origin):
        return (replace(first, text=_CHOSEN),)
    squares = variances.of_squares(facts, op)
    if squares is not None:
        return _of_squares(facts, squares, first, own_eps=own_eps)
    made = _positive(facts, op) if op in _POSITIVE else None
    if made is not None:
        return (made, first)
    return _where_it_belongs(facts, op, first)


def _where_it_belongs(facts: Facts, op: str, first: Suggestion) -> tuple[Suggestion, ...]:
    """Return where the argument is to be kept within the domain: where it is written or made, else in the line."""
    written = shared.where_written(facts, op) if op in _POSITIVE else None
    if written is not None:
        return (written, replace(first, text=_NO_MORE))
    first = (shared.where_made(facts, op, _WHY) if op in _POSITIVE else None) or first
    if op not in _LOGS:
        return _far(facts, op, first) if op not in _POSITIVE else (first,)
    return _of_logarithm(facts, op, first)


def _of_logarithm(facts: Facts, op: str, first: Suggestion) -> tuple[Suggestion, ...]:
    """Return what is to be done where the argument is made beside the line with it clamped."""
    given = facts.origin.inputs[0].min
    if facts.extra.get("of_weights") is True and given is not None and given < _ROUNDED:
        made = signs.of_trained(facts, op)
        if made is signs.LEARNT and signs.is_of_carried(facts, op):
            return (made,)  # a bound here leaves below zero what the next turn goes on with
        return (first,) if made is None else (made, first)
    loaded = facts.origin.phase == "data" or "dataset" in facts.extra or facts.extra.get("of_weights") is False
    return (first, *([] if loaded else [_PARAMETRISED]))


def _of_squares(facts: Facts, squares: Suggestion, first: Suggestion, *, own_eps: bool) -> tuple[Suggestion, ...]:
    if facts.extra.get("lost") == {}:  # it was looked for, and is more than rounding leaves
        return (replace(first, text=_NO_ROUNDING),)
    return (first, squares) if own_eps or _by_rounding(facts, squares) else (squares, first)


def _by_rounding(facts: Facts, squares: Suggestion) -> bool:
    """Whether rounding alone led below 0, and no line of the script's own is known that would avoid it."""
    least = facts.origin.inputs[0].min
    return squares.code in {None, variances.GENERAL} and least is not None and least >= _ROUNDED


def _alone(facts: Facts, op: str) -> Suggestion | None:
    """Return what mends it beside which no clamp is of use: of a determinant, or of a weight itself."""
    sized = factors.unchecked(facts) or determinants.in_one_step(facts, op) or corrections.below_zero(facts, op)
    if sized is None and op in _LOGS:
        sized = determinants.of_size(facts, op)
    sized = learnt.of_few(facts) if sized is None and op in _POSITIVE else sized
    return learnt.by_logarithm(facts, op) if sized is None and op in _POSITIVE else sized


def _clamped(facts: Facts, op: str, guard: str) -> tuple[Suggestion, bool]:
    """Return the line with what leaves the domain clamped, and whether the script adds a small number itself."""
    least = _ROUNDS_AWAY if dtype_of(facts.origin.inputs[0]) == "float16" else 0.0
    within = bounding.before_eps(facts.origin, op, least) if op in _POSITIVE else None
    if within is not None:
        text = "Find out why the value leaves the domain; where rounding alone does it, clamp it, before the small "
        return Suggestion(f"{text}number is added.", within), True
    guard = guard.replace("1e-12", _OF_SCALES) if _is_divided_by_too(facts, op) else guard
    place = bounding.second if op == "xlogy" else fitting.argument
    fitted = place(facts.origin, op, lambda text: f"{text}.{guard}")
    low, high, _ = DOMAINS.get(op, (None, None, ""))
    given = facts.origin.inputs[0]
    at_end = bool(_poles(op, given)) and _outside(given, low, high) is None
    return Suggestion(_AT_END if at_end else _LEAVES, fitted or f"torch.{op}(x.{guard})"), False


_LEAVES = "Find out why the value leaves the domain; where rounding alone does it, clamp it."
_AT_END = (
    "Nothing leaves the domain, but its ends are reached: let what makes it stay between them (points in the middle of "
    "their steps, say), or clamp it."
)


def _is_divided_by_too(facts: Facts, op: str) -> bool:
    """Whether the line divides by what is far below 0, too: behind a tiny bound its gradient would be huge."""
    found, least = fitting.parsed(facts.origin), facts.origin.inputs[0].min
    part = None if found is None or op not in _LOGS else fitting.target(found[1], op)
    if part is None or least is None or least >= _ROUNDED:
        return False
    return bool(fitting.breakable((facts.origin.source or "").strip(), part, poles=False))


def _positive(facts: Facts, op: str) -> Suggestion | None:
    """Say where the model makes the number, of any sign, and how it makes a positive one; ``None`` where it does not.

    No clamp mends that: behind one there is no gradient that leads back.
    """
    made = meanings.into(facts, op) if _of_any_sign(facts) else None
    if made is None:
        return None
    text, meaning = ast.unparse(made.node), made.meaning
    made_so, told = (_chance, _CHANCE) if _of_a_chance(facts, op) else (_plus, _PLUS)
    if meaning is None and not isinstance(made.node, ast.Name):
        line = fitting.argument(facts.origin, op, lambda inner: f"({made_so(inner)})")
        return Suggestion(f"The model makes it, of any sign: {told}", line)
    if not made.inside and meaning is not None:
        where = f"{posixpath.basename(meaning.file)}:{meaning.line}"
        return Suggestion(f"The model makes it, of any sign, at {where}: {told}", made_so(text))
    name = meaning.name if meaning is not None else text
    where = f"in line {meaning.line}" if meaning is not None else "before this line"
    return Suggestion(f"The model makes it, of any sign: {where}, {told}", f"{name} = {made_so(text)}")


def _plus(text: str) -> str:
    return f"{_SOFTPLUS}({text}) + 1e-6"


def _chance(text: str) -> str:
    # In float32 the sigmoid itself is 1 from about 17 on.
    return f"torch.sigmoid({text}).clamp(1e-6, 1 - 1e-6)"


def _of_a_chance(facts: Facts, op: str) -> bool:
    """Whether the line takes the logarithm of one less the same number too: then it is to be below one as well."""
    found = fitting.parsed(facts.origin)
    given = None if found is None or op not in _LOGS else fitting.target(found[1], op)
    line = None if given is None else parsing.module((facts.origin.source or "").strip())
    if given is None or line is None:
        return False
    rests = [rest for node in ast.walk(line) if isinstance(node, ast.Call) and (rest := fitting.target(node, op))]
    return any(_is_rest(one, of=given) or _is_rest(given, of=one) for one in rests)


def _is_rest(node: ast.expr, *, of: ast.expr) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Constant)):
        return False
    return node.left.value == 1 and ast.dump(node.right) == ast.dump(of)


def _of_any_sign(facts: Facts) -> bool:
    """Whether what goes into the op is what a linear layer or a convolution gave, looked at in whatever way."""
    nodes = facts.extra.get("made_by")
    made = [str(node).partition("Backward")[0] for node in nodes] if isinstance(nodes, list) else []
    return next((node for node in made if node not in _LOOKS), None) in _LINEAR


def _at_zero(facts: Facts, op: str, given: TensorFact) -> Cause:
    held = "is 0" if given.numel == 1 else f"holds {words.count(given.zeros, 'zero')}"
    code = fitting.argument(facts.origin, op, lambda text: f"{text}.clamp_min(1e-6)")
    nodes = facts.extra.get("made_by")
    rectified = isinstance(nodes, list) and any(str(node).startswith("Relu") for node in nodes)
    what = " in the place of relu, which gives exact zeros" if rectified else ", or by adding 1 to what is not negative"
    text = f"here the model makes it, let it be positive by construction, by {_SOFTPLUS}{what}"
    known = _DISTRIBUTION if code is None and "(" in (facts.origin.source or "") else ""
    made = Suggestion(f"{'W' if code is None else 'Better, w'}{text}.{known}", f"{_SOFTPLUS}(z) + 1e-6")
    kept = Suggestion("Keep it above zero here: that goes on, and no gradient leads back from what is 0.", code)
    mends = (made,) if code is None else (kept, made)
    return Cause("domain_error", (f"the input of {op} {held}; it is infinite there",), mends)


_DISTRIBUTION = (
    " In a Gamma, Beta, Dirichlet or Student distribution that is the concentration or rate, and a count in Poisson's."
)


def _negative_variance(facts: Facts, variance: TensorFact, op: str) -> Cause | None:
    """The last tensor that a batch norm is given is its running variance, where it keeps one."""
    if len(variance.shape) != 1 or variance.min is None or variance.min >= 0:
        return None
    name = variance.name or "the running variance"
    text = f"{name} goes down to {words.number(variance.min)}; {op} takes its square root, and that is NaN"
    steps = (
        Suggestion(
            f"Find out what wrote {name}: a variance is never negative. Averages and differences of checkpoints "
            "should leave the statistics of norms out, or take them from one of the checkpoints."
        ),
        Suggestion("Check it right after it was written.", "assert (norm.running_var >= 0).all()"),
    )
    read = None if variance.name is None else facts.read_from(variance.name)
    came = () if read is None else (f"It was {read}; finite batches never make it negative.",)
    return Cause("domain_error", (text, *came), steps)


def _root_of_a_negative(facts: Facts, given: TensorFact) -> Cause | None:
    exponent = facts.number("arg1")
    if given.min is None or given.min >= 0 or (exponent is not None and exponent == int(exponent)):
        return None
    power = "a fractional power" if exponent is None else f"the power of {words.number(exponent)}"
    least = _ROUNDS_AWAY if dtype_of(given) == "float16" else 0.0
    within = bounding.before_eps(facts.origin, "pow", least)
    wide = _is_of_a_wide_spectrum(given)
    bound = "{0}.clamp_min(1e-6 * {0}.max())" if wide else "{}.clamp_min(1e-6)"
    fitted = (None if wide else within) or fitting.argument(facts.origin, "pow", bound.format)
    text = "Keep the base above zero."
    if wide:
        text += " What rounding leaves is as large as its part of the largest: so is the bound to be."
    learned = learnt.by_logarithm(facts, "pow")
    return Cause(
        slug="domain_error",
        evidence=(f"the base of pow goes to {words.number(given.min)}; a negative number to {power} is NaN",),
        suggestions=(learned or Suggestion(text, fitted or "x.clamp_min(1e-6) ** p"),),
    )


def _is_of_a_wide_spectrum(given: TensorFact) -> bool:
    """Whether it is below 0 by no more than rounding of its largest, which is far above 1."""
    return (given.max or 0.0) > _WIDE and -(given.min or 0.0) < _OF_LARGEST * (given.max or 0.0)


_WIDE, _OF_LARGEST = 1e3, 1e-5


def _outside(given: TensorFact, low: float | None, high: float | None) -> float | None:
    if low is not None and given.min is not None and given.min < low:
        return given.min
    return given.max if high is not None and given.max is not None and given.max > high else None


def _poles(op: str, given: TensorFact) -> list[float]:
    return [end for end in POLES.get(op, ()) if end in (given.min, given.max)]

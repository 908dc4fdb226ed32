"""What a call says that refused finite numbers, a matrix or an argument, and what to change (launcher and reader)."""

from __future__ import annotations

import math

from nandiag.analysis.causes.mends.matrices import factors
from nandiag.analysis.early.drawn import where
from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

MATRIX, ARGUMENT = "matrix_refused", "argument_refused"
# Of what rounding takes away: a share of the largest eigenvalue.
_ROUNDED = 1e-4
_EPS = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 1e-2, "float16": 1e-3}
_RANGES = {
    "GreaterThan(lower_bound=0.0)": ("above 0", ".clamp_min(1e-6)"),
    "GreaterThanEq(lower_bound=0.0)": ("0 or more", ".clamp_min(0.0)"),
    "Interval(lower_bound=0.0, upper_bound=1.0)": ("between 0 and 1", ".clamp(0.0, 1.0)"),
    "HalfOpenInterval(lower_bound=0.0, upper_bound=1.0)": ("from 0 to below 1", ".clamp(0.0, 1.0 - 1e-6)"),
}


def told_matrix(warned: Warned) -> str:
    """Return which matrix was refused, where, and what its eigenvalues are, or its singular values."""
    facts = warned.facts
    which = f" {_whole(warned, 'index')} of {_whole(warned, 'of')}" if _whole(warned, "of") > 1 else ""
    size = f"{_whole(warned, 'size')} x {_whole(warned, 'size')}, {_dtype(warned)}"
    kind = "eigenvalue" if "cholesky" in _call(warned) else "singular value"
    bounds = f"its least {kind} is {words.number(_number(warned, 'least'))}, its largest"
    said = f"{_call(warned)} refused {_name(warned, 'the matrix')}{which} ({size}){where(facts.get('at'), 'at')}"
    said = f"{said}: {bounds} {words.number(_number(warned, 'largest'))}"
    rows = facts.get("rows")
    if isinstance(rows, list) and len(rows) == 2:
        said += f"; rows {rows[0]} and {rows[1]} are equal"
    return f"{said}; it is not its own transpose" if facts.get("turned") is True else said


def mends_matrix(warned: Warned) -> tuple[Suggestion, ...]:
    """Return what to change about such a matrix."""
    least, largest, name = _number(warned, "least"), _number(warned, "largest"), _plain(warned) or "A"
    if warned.facts.get("turned") is True:
        text = "Such factors are of symmetric matrices: look at what makes it, or take its mean with its transpose."
        return (Suggestion(text, f"{name} = ({name} + {name}.mT) / 2"),)
    learnt = factors.below_zero(warned.facts, as_written=True)
    if learnt is not None:
        return (learnt,)
    if "cholesky" in _call(warned) and least < -_ROUNDED * largest:
        text = "That is more than rounding makes: look at what makes it, for no such matrix is a covariance."
        return (Suggestion(text),)
    jitter = _jitter(warned, least, largest)
    code = f"{name} = {name} + {jitter} * torch.eye({name}.shape[-1], dtype={name}.dtype, device={name}.device)"
    text = "Add to the diagonal what rounding takes away, or the variance of the noise where it is of data."
    found = (Suggestion(text, code),)
    if isinstance(warned.facts.get("rows"), list):
        return (*found, Suggestion("Or leave out one of each two that are equal where it is made."))
    if _dtype(warned) == "float64":
        return found
    return (*found, Suggestion("Or make it in float64, and bring back to its dtype what comes of it."))


def told_argument(warned: Warned) -> str:
    """Return which argument of which distribution was refused, and what of it is out of its range."""
    facts = warned.facts
    made = facts.get("made")
    name = f"its {facts.get('param')}" + (f", {facts['name']}" if isinstance(facts.get("name"), str) else "")
    said = f"{facts.get('law')} refused {name}{where(facts.get('at'), 'at')}"
    said += f": {words.count(_whole(warned, 'invalid'), 'value')} of {_whole(warned, 'of')} {_fault(warned)}"
    if isinstance(made, str):
        said += f"; it is {made}{where(facts.get('made_at'), 'set at')}"
    return f"{said}: the exponential is so small that it is 0" if _vanished(warned) else said


def mends_argument(warned: Warned) -> tuple[Suggestion, ...]:
    """Return what to change about such an argument, in the script's own words."""
    name, guard = warned.facts.get("name"), _RANGES.get(str(warned.facts.get("constraint")), ("", ""))[1]
    if not isinstance(name, str) or not guard:
        return (Suggestion("Look at what makes it, and keep it in that range there."),)
    whole = name if _plain(warned) or name.endswith(")") else f"({name})"
    text = "Keep it in that range."
    if _vanished(warned):
        text = "Keep the exponential above 0, or bound the exponent from below."
    return (Suggestion(text, f"{warned.facts.get('param')} = {whole}{guard}"),)


def _fault(warned: Warned) -> str:
    constraint = str(warned.facts.get("constraint"))
    wanted = _RANGES.get(constraint, (f"as {constraint} asks", ""))[0]
    one = _whole(warned, "invalid") == 1
    least, most = (words.number(_number(warned, key)) for key in ("least", "most"))
    held = least if least == most else f"{least} to {most}"
    return f"{'is' if one else 'are'} not {wanted}" + (f" ({held})" if "least" in warned.facts else "")


def _vanished(warned: Warned) -> bool:
    every = _whole(warned, "zeros") == _whole(warned, "invalid") > 0
    return warned.facts.get("small") is True and every


def _jitter(warned: Warned, least: float, largest: float) -> str:
    """Return a power of ten above what is missing on the diagonal, and above what the dtype can tell."""
    wanted = max(1e-12, _EPS.get(_dtype(warned), 1e-6) * largest, 2 * abs(min(0.0, least)))
    return f"1e{math.ceil(math.log10(wanted))}" if wanted < math.inf else "1e-6"


def _name(warned: Warned, other: str) -> str:
    name = warned.facts.get("name")
    return name if isinstance(name, str) and name else other


def _plain(warned: Warned) -> str | None:
    name = _name(warned, "")
    return name if name.replace("_", "").replace(".", "").isalnum() else None


def _dtype(warned: Warned) -> str:
    return str(warned.facts.get("dtype", "?"))


def _call(warned: Warned) -> str:
    return str(warned.facts.get("call", "linear algebra"))


def _whole(warned: Warned, key: str) -> int:
    value = warned.facts.get(key)
    return value if isinstance(value, int) else 0


def _number(warned: Warned, key: str) -> float:
    value = words.as_number(warned.facts.get(key))
    return math.nan if value is None else value

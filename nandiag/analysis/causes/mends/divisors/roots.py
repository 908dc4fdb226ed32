"""A divisor that is the root of what is zero, made in a line above the division (reader side).

A guard of the divisor mends the quotient alone: the gradient goes on to the root, is infinite there, and times 0 NaN.
"""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, parsing, quotients
from nandiag.analysis.causes.mends.script.guards import under_root
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning, TensorFact, words

_WHY = "is the root of what is 0, and there the gradient of a root is infinite"
_NODES, _USUAL = ("Sqrt",), "1e-12"
_HANDED_ON = ("Unsqueeze", "Squeeze", "View", "Reshape", "Expand", "Index", "Slice", "Select", "UnsafeView")


def forward(facts: Facts) -> Suggestion | None:
    """Return the user's line with what its root is taken of guarded, where the derivative of that is taken forward.

    It divides by the root, though the line divides by nothing.
    """
    if facts.node is not None:
        return None
    code = fitting.argument(facts.origin, "sqrt", lambda inner: f"{inner}.clamp_min(1e-12)")
    text = (
        "The derivative of a root, taken forward here (a jvp), divides by the root: keep what is under it above zero."
    )
    return None if code is None else Suggestion(text, code)


def of_length(facts: Facts) -> Suggestion | None:
    """Return the user's line with a length written out as a root that stays above zero; what else it is given stays.

    Its gradient divides by it, and where that is differentiated once more so does the line, which divides by nothing.
    """
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    name = next((one for one in _LENGTHS if call is not None and fitting.target(call, one) is not None), None)
    if facts.node is None or name is None or not isinstance(call, ast.Call):
        return None
    vector = fitting.target(call, name)
    words = {one.arg: ast.unparse(one.value) for one in call.keywords}
    is_method = isinstance(call.func, ast.Attribute) and call.func.value is vector
    if vector is None or len(call.args) > (0 if is_method else 1) or words.keys() - {"dim", "keepdim"}:
        return None
    given = ", ".join(f"{key}={value}" for key, value in words.items())
    code = fitting.whole(facts.origin, f"({fitting.bracketed(vector)}.square().sum({given}) + 1e-12).sqrt()")
    text = "The gradient of a length divides by it: take the root of a sum that stays above zero."
    return None if code is None else Suggestion(text, code)


_LENGTHS = ("norm", "vector_norm")


def above(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Say how to keep what is under the root away from zero, in its own line; ``None`` where there is no such root."""
    passes = facts.node is None and facts.origin.phase != "optimizer" and facts.extra.get("of_weights") is True
    if not passes or quotients.rooted(facts.origin, str) is not None:  # else it stands in the line itself
        return None
    infinite = any(fact.posinf or fact.neginf for fact in facts.origin.outputs)
    if infinite and divisor.numel == 1:
        return None
    guard = under_root(divisor)
    several = None if infinite else _of_product(facts)
    if several is not None:
        return several
    name, meaning = _named(facts)
    line = None if meaning is None else _guarded(meaning, f"1e{guard}")
    if meaning is None or line is None:
        made = "" if meaning is None else f", in line {meaning.line}"
        return _by_node(name or "the divisor", made, infinite=infinite) if _is_root(facts) else None
    where = f"in line {meaning.line}"
    if meaning.file != facts.origin.file:
        where += f" of {posixpath.basename(meaning.file)}"
    if not infinite:
        return Suggestion(f"{name} {_WHY}: keep what is under it above zero, {where}.", line)
    kept = quotients.left_out(facts.origin, f"> 2e{guard // 2}")
    text = f"{name} {_WHY}: keep what is under it above zero, {where}, and give 0 here where it was."
    return Suggestion(text, None if kept is None else f"{line}\n{kept}")


def _by_node(name: str, where: str, *, infinite: bool) -> Suggestion:
    """The script's text does not show the root."""
    text = f"{name} {_WHY}: keep what is under it above zero where it is made{where}"
    end = ", and give 0 where it was: a small number in its place would make the quotient huge." if infinite else "."
    return Suggestion(text + end, "torch.sqrt(x.clamp_min(1e-12))")


def _of_product(facts: Facts) -> Suggestion | None:
    """The divisor is a product of names that stand for roots."""
    found = fitting.parsed(facts.origin)
    divided = None if found is None else quotients.divided_by(found[1])
    parts = [] if divided is None else [_plain(one) for one in quotients.factors(divided)]
    made = [facts.meaning(part.id) for part in parts if part is not None]
    lines = [(one, line) for one in made if one is not None and (line := _guarded(one, _USUAL)) is not None]
    if len(parts) < 2 or not lines or any(one.file != facts.origin.file for one, _ in lines):
        return None
    names = " and ".join(one.name for one, _ in lines)
    each = "is the root" if len(lines) == 1 else "are roots"
    text = (
        f"{names} {each} of what may be 0, and there the gradient of a root is infinite: keep what is under it above "
        f"zero, in {words.lines([one.line for one, _ in lines])}."
    )
    return Suggestion(text, "\n".join(line for _, line in lines))


def _named(facts: Facts) -> tuple[str | None, Meaning | None]:
    """Return the name that the line divides by, behind views and indices of it, and what that stands for."""
    found = fitting.parsed(facts.origin)
    divided = None if found is None else quotients.divided_by(found[1])
    name = None if divided is None else _plain(divided)
    return (None, None) if name is None else (name.id, facts.meaning(name.id))


def _plain(node: ast.expr) -> ast.Name | None:
    """Return the name that is looked at, in whatever way."""
    inner = quotients.looked_at(node)
    return inner if isinstance(inner, ast.Name) else None


def _guarded(meaning: Meaning, guard: str) -> str | None:
    """Return what the name stands for with the argument of its root guarded; ``None`` where it is no root."""
    node = parsing.expression(meaning.text)
    factors = [] if node is None else quotients.factors(node)
    inner = [under for factor in factors if (under := quotients.root_of(factor)) is not None]
    if not inner or len(inner) < len(factors) or not meaning.text.isascii():
        return None  # else what is no root may be the one that is 0
    text = meaning.text
    for part in sorted(inner, key=lambda one: -one.col_offset):
        text = fitting.put(text, part, lambda under: f"{under}.clamp_min({guard})")
    return f"{meaning.name} = {text}" if meaning.inside else text


def is_in(facts: Facts) -> bool:
    """Whether autograd is known to have taken a root on the way to the divisor, or a power."""
    nodes = facts.extra.get("below_by")
    return isinstance(nodes, list) and any(str(node).startswith(("Sqrt", "Pow")) for node in nodes)


def _is_root(facts: Facts) -> bool:
    """Whether autograd made the divisor by a root, as far as it is known."""
    nodes = facts.extra.get("made_by" if len(facts.origin.inputs) == 1 else "below_by")
    names = [str(node) for node in nodes] if isinstance(nodes, list) else []
    return next((name for name in names if not name.startswith(_HANDED_ON)), "").startswith(_NODES)

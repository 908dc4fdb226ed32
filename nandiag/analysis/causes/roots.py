"""A divisor that is the root of what is zero, made in a line above the division (reader side).

A guard of the divisor mends the quotient alone: the gradient goes on to the root, is infinite there, and times 0 NaN.
"""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes import fitting, quotients
from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.guards import under_root
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning, TensorFact

_WHY = "is the root of what is 0, and there the gradient of a root is infinite"
_NODES = ("Sqrt",)
# What only looks at its tensor in another way.
_VIEWS = frozenset({"unsqueeze", "squeeze", "view", "reshape", "expand", "unflatten", "flatten"})
_HANDED_ON = ("Unsqueeze", "Squeeze", "View", "Reshape", "Expand", "Index", "Slice", "Select", "UnsafeView")


def above(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Say how to keep what is under the root away from zero, in its own line; ``None`` where there is no such root."""
    if facts.node is not None or facts.origin.phase == "optimizer" or facts.extra.get("of_weights") is not True:
        return None
    infinite = any(fact.posinf or fact.neginf for fact in facts.origin.outputs)
    if infinite and divisor.numel == 1:
        return None
    guard = under_root(divisor)
    name, meaning = _named(facts)
    line = None if meaning is None else _guarded(meaning, f"1e{guard}")
    if meaning is None or line is None:
        return _by_node(name or "the divisor", infinite=infinite) if _is_root(facts) else None
    where = f"in line {meaning.line}"
    if meaning.file != facts.origin.file:
        where += f" of {posixpath.basename(meaning.file)}"
    if not infinite:
        return Suggestion(f"{name} {_WHY}: keep what is under it above zero, {where}.", line)
    kept = quotients.left_out(facts.origin, f"> 2e{guard // 2}")
    text = f"{name} {_WHY}: keep what is under it above zero, {where}, and give 0 here where it was."
    return Suggestion(text, None if kept is None else f"{line}\n{kept}")


def _by_node(name: str, *, infinite: bool) -> Suggestion:
    """The script's text does not show the root."""
    text = f"{name} {_WHY}: keep what is under it above zero where it is made"
    end = ", and give 0 where it was: a small number in its place would make the quotient huge." if infinite else "."
    return Suggestion(text + end, "torch.sqrt(x.clamp_min(1e-12))")


def _named(facts: Facts) -> tuple[str | None, Meaning | None]:
    """Return the name that the line divides by, behind views and indices of it, and what that stands for."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else quotients.divided_by(found[1])
    while node is not None and not isinstance(node, ast.Name):
        looks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS
        if not (looks or isinstance(node, ast.Subscript)):
            return None, None
        node = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node.value  # type: ignore[attr-defined]
    return (None, None) if node is None else (node.id, facts.meaning(node.id))


def _guarded(meaning: Meaning, guard: str) -> str | None:
    """Return what the name stands for with the argument of its root guarded; ``None`` where it is no root."""
    try:
        node = ast.parse(meaning.text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    inner = fitting.target(node, "sqrt") or quotients.half_power(node)
    if inner is None or not meaning.text.isascii():
        return None
    text = fitting.put(meaning.text, inner, lambda part: f"{part}.clamp_min({guard})")
    return f"{meaning.name} = {text}" if meaning.inside else text


def _is_root(facts: Facts) -> bool:
    """Whether autograd made the divisor by a root, as far as it is known."""
    nodes = facts.extra.get("made_by" if len(facts.origin.inputs) == 1 else "below_by")
    names = [str(node) for node in nodes] if isinstance(nodes, list) else []
    return next((name for name in names if not name.startswith(_HANDED_ON)), "").startswith(_NODES)

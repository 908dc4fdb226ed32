"""Densities of torch's distributions at values or scales that they are not defined for (reader side)."""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import bounding, fitting, meanings
from nandiag.analysis.report import Suggestion

# These take the logarithm of their scale or rate, never of the value: how it is called, and its place among the words.
_SCALES = {
    "Normal": ("scale", 1), "Laplace": ("scale", 1), "Cauchy": ("scale", 1), "Gumbel": ("scale", 1),
    "StudentT": ("scale", 2), "HalfNormal": ("scale", 0), "HalfCauchy": ("scale", 0), "Exponential": ("rate", 0),
    "Poisson": ("rate", 0),
}  # fmt: skip
_GUARD = "clamp_min(1e-6)"
_AT_THE_END = (
    "The value lies at the end of the distribution's support, where the density is 0 or infinite: keep it within."
)


def mended(facts: Facts) -> Suggestion | None:
    """Say what a distribution took the logarithm of, or divided by, where the script asked for ``log_prob``."""
    if _asked(facts) is None:
        return None
    scaled = of_scale(facts)
    if scaled is not None:
        return scaled
    given = facts.origin.inputs[-1]
    shares = given.min == 0.0 and given.max is not None and given.max <= 1.0
    guard = "clamp(1e-6, 1 - 1e-6)" if shares else _GUARD
    code = bounding.argument_of_method(facts.origin, "log_prob", lambda inner: f"{inner}.{guard}")
    return None if code is None else Suggestion(_AT_THE_END, code)


def _asked(facts: Facts) -> ast.expr | None:
    """Return what the one ``log_prob`` within the underlined expression is asked of."""
    found = fitting.parsed(facts.origin)
    calls = [] if found is None else [node for node in ast.walk(found[1]) if isinstance(node, ast.Call)]
    asked = [one.func.value for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "log_prob"]
    return asked[0] if len(asked) == 1 else None


def _built(facts: Facts, asked: ast.expr) -> tuple[meanings.Made, ast.Call] | None:
    """Return the text that makes the distribution, and the call of its class in it, where that has a scale.

    None where the value is transformed first, which takes logarithms of its own.
    """
    made = meanings.behind(facts, asked)
    calls = [node for node in ast.walk(made.node) if isinstance(node, ast.Call)]
    if any("Transform" in ast.unparse(one.func) for one in calls):
        return None
    named = [one for one in calls if _class_of(one) in _SCALES]
    return (made, named[0]) if len(named) == 1 else None


def _class_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def of_scale(facts: Facts) -> Suggestion | None:
    """Say how the scale, or the rate, stays above zero; ``None`` where it is not known to be that."""
    asked = _asked(facts)
    built = None if asked is None else _built(facts, asked)
    if built is None:
        return None
    made, call = built
    word, place = _SCALES[_class_of(call)]
    by_name = next((one.value for one in call.keywords if one.arg == word), None)
    scale = by_name or (call.args[place] if len(call.args) > place else None)
    if scale is None or isinstance(scale, ast.Constant) or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    where = f", at {posixpath.basename(made.meaning.file)}:{made.meaning.line}" if made.meaning is not None else ""
    text = f"{ast.unparse(scale)} is the {word} of the distribution{where}: keep it above zero."
    return Suggestion(text, _guarded(facts, made, scale))


def _guarded(facts: Facts, made: meanings.Made, scale: ast.expr) -> str | None:
    found = fitting.parsed(facts.origin)
    if made.meaning is None:
        return None if found is None else fitting.line_of(facts.origin, found[0], scale, _bounded)
    # The text that stands for the name is the parser's own, of which the places are those of its tree.
    told = fitting.put(made.meaning.text, scale, _bounded)
    return f"{made.meaning.name} = {told}" if made.inside else told


def _bounded(text: str) -> str:
    return f"{text}.{_GUARD}"

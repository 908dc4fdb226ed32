"""What is divided by next to nothing leaves its dtype, however ordinary it is: by a number, say (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms, scalings, temperatures
from nandiag.analysis.causes.mends.script import parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import Meaning, words

_TINY, _NEXT_TO_NOTHING = 1e-6, 1e-9
_DIVISIONS = frozenset({"div", "true_divide", "divide"})


def told(facts: Facts) -> tuple[str, ...]:
    """Say by which number of the script's own it is divided, and where that is set; nothing where it is not tiny."""
    number, text = _number(facts), quotients.below(facts.origin)
    if number is None:
        return ()
    alias = facts.alias(text or "")
    name = alias or text or ""
    called = f"{text} ({alias})" if alias else text or "a number"
    lines, scaled = facts.written(name), facts.scaled(name)
    parts = [f"set in {words.lines(lines)}"] if lines else []
    if scaled:
        parts.append(f"{words.lines(scaled)} {'scales' if len(scaled) == 1 else 'scale'} it each time")
    where = "".join(f"; {part}" for part in parts)
    return (f"It is divided by {called}, which is {words.number(number)} by then{where}.",)


def mended(facts: Facts) -> tuple[Suggestion, ...]:
    """Say what to do about a divisor that is next to nothing; nothing where it is not."""
    if (number := _number(facts)) is not None:
        return (_of_number(facts, number),)
    if (vanishing := _of_exponentials(facts)) is not None:
        return (vanishing,)
    tiny = _tiny_divisor(facts)
    if tiny is None:
        return ()
    scaled = scalings.in_logarithms(facts, facts.origin.inputs[-1])
    guarded = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min(1e-6)")
    text = f"It is divided by as little as {words.number(tiny)}: keep the divisor away from zero."
    return (scaled or Suggestion(text, guarded or "a / b.clamp_min(1e-6)"),)


def _number(facts: Facts) -> float | None:
    """Return the number, no tensor, that is divided by, where it is tiny, and not 0."""
    number = facts.number("arg1") if facts.op in _DIVISIONS and len(facts.origin.inputs) == 1 else None
    return number if number is not None and 0.0 < abs(number) < _TINY else None


def _of_number(facts: Facts, number: float) -> Suggestion:
    """A bound is told where it is plain which one is of use: of a temperature, by which scores are divided."""
    text = quotients.below(facts.origin)
    alias = facts.alias(text or "")
    lines = facts.scaled(alias or text or "") or facts.written(alias or text or "")
    at = f" where it is set ({words.lines(lines)})" if lines else " where it is set"
    bounded = temperatures.bounded(facts) if number > 0.0 else None
    name = alias or text or "the number that it is divided by"
    least = "" if bounded is None else ", at the least that was meant to be reached"
    return Suggestion(
        f"Keep {name} from falling to {words.number(number)}{at}{least}: what is divided by it is of ordinary size, "
        "and no clipping of gradients would help.",
        None if bounded is None else bounded.code,
    )


def _tiny_divisor(facts: Facts) -> float | None:
    """Return the least of what an overflowing division, or its gradient, divides by, where that is next to nothing."""
    if facts.op not in {"div", "reciprocal"}:
        return None
    least = facts.origin.inputs[-1].min
    return least if least is not None and 0.0 < least < _NEXT_TO_NOTHING else None


def _of_exponentials(facts: Facts) -> Suggestion | None:
    """What is multiplied was divided by a sum of exponentials that went towards 0, as scalings of Sinkhorn's are."""
    if facts.op not in {"mul", "mm", "bmm", "mv"} or facts.around is None:
        return None
    known = (*facts.around.names, *facts.around.kinds)
    for kernel in known:
        below = _divides_an_exponent(kernel)
        divided = next((one for one in known if one is not kernel and _is_divided_by(one, kernel.name)), None)
        if below is None or divided is None:
            continue
        return Suggestion(
            f"{kernel.name} (line {kernel.line}) holds exponentials that come towards 0 as {below} falls, and what is "
            f"divided by their sums ({divided.name} = {divided.text}, line {divided.line}) grows as they do: keep "
            f"{below} above a floor where it is set, or compute in logarithms throughout (torch.logsumexp) and take "
            "the exponential last."
        )
    return None


def _divides_an_exponent(made: Meaning) -> str | None:
    """Return the s of ``torch.exp(-x / s)``."""
    node = parsing.expression(made.text)
    given = None if node is None else forms.exponent(node)
    quotient = given.operand if isinstance(given, ast.UnaryOp) else given
    if given is None or not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return None
    below = quotient.right
    return ast.unparse(below) if "-" in ast.unparse(given) and isinstance(below, ast.Name | ast.Attribute) else None


def _is_divided_by(made: Meaning, name: str) -> bool:
    """Whether it is ``a / (K @ v)``, or another quotient by what the name goes into."""
    node = parsing.expression(made.text)
    below = None if node is None else quotients.divided_by(node)
    return below is not None and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(below))

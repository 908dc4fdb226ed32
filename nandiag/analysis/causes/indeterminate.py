"""Arithmetic of infinities that has no value, and gives NaN: 0 times inf, inf less inf, inf over inf (reader side).

Where an infinity was computed, that is the origin; what is left here is one that the script wrote, a mask as a rule.
"""

from __future__ import annotations

import ast
import math
import posixpath
import re
from collections.abc import Callable
from dataclasses import replace

from nandiag.analysis.causes.facts import LIKELY, Cause, Facts, dtype_of
from nandiag.analysis.causes.masked_infinity import written_at
from nandiag.analysis.causes.mends.script import bounding, fitting
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_NUMBER = "number"
_BESIDE, _WEIGHTS = ("arg0", "arg1", "other"), ("arg2", "weight")
_FAR = {"float16": "6e4"}
# What Python, numpy and torch have +inf by, and not ``-inf``.
_ENDLESS = re.compile(r"""(?<![-\w.])(?:float\(["']\+?inf(?:inity)?["']\)|(?:torch|math|np|numpy)\.inf\b)""")
_SUMS = {"sub": "less", "rsub": "less", "add": "and"}


def explain(facts: Facts) -> Cause | None:
    """Name the two that met where infinities went into a product, a sum or a quotient, and NaN came out.

    A number that the script wrote beside a tensor is one of the two like another tensor.
    """
    if facts.node is not None or facts.source != "op":
        return None
    if facts.op == "lerp":
        return _lerp(facts)
    given = (*facts.origin.inputs, *_written(facts))
    if not facts.outputs_nan or len(given) != 2 or any(fact.nan for fact in given) or not any(map(_infinities, given)):
        return None
    met = _met(facts.op or "", given)
    if any(fact.guessed for fact in given):  # what the other side held is not known
        met = f"what {facts.op} was given is {words.bad_kind(given)}"
    if met is None:
        return None
    mends, laid = _advice(facts, given), _laid_finite(facts)
    if laid:
        mends = (*laid, *(replace(one, text=f"Or {one.text[:1].lower()}{one.text[1:]}") for one in mends))
    return Cause("domain_error", (met, *written_at(facts, words.bad_kind(given) or "Inf")), mends, LIKELY)


def _laid_finite(facts: Facts) -> tuple[Suggestion, ...]:
    """Say what to write in the place of +Inf, where the script lays it for a value that is missing."""
    at, line = facts.extra.get("masked_at"), facts.extra.get("masked_text")
    if not isinstance(at, list) or not isinstance(line, str) or facts.op != "mul" or not _ENDLESS.search(line):
        return ()
    place = f"{posixpath.basename(str(at[0]))}:{at[1]}"
    text = f"Write a large finite number in the place of the +Inf at {place}: 0 makes 0 of that."
    return (Suggestion(text, _ENDLESS.sub(_FAR.get(dtype_of(facts.origin.outputs[0]), "1e9"), line)),)


def _written(facts: Facts) -> tuple[TensorFact, ...]:
    """Return facts on the number that stands beside the one tensor, as if it were a tensor of one element."""
    numbers = [value for name in _BESIDE if (value := facts.number(name)) is not None]
    if len(facts.origin.inputs) != 1 or len(numbers) != 1:
        return ()
    (value,) = numbers
    least = value if math.isfinite(value) else None
    kinds = (int(math.isnan(value)), int(value == math.inf), int(value == -math.inf), int(value == 0))
    return (TensorFact(_NUMBER, (), 1, *kinds, least, least, None if least is None else abs(least)),)


def _lerp(facts: Facts) -> Cause | None:
    """Say what a weight without end makes of an average: all infinite, and NaN where both sides are alike."""
    weights = [value for name in _WEIGHTS if (value := facts.number(name)) is not None]
    if not facts.finite_inputs or len(weights) != 1 or not math.isinf(weights[0]):
        return None
    met = f"lerp was given a weight of {words.number(weights[0])}: what comes out is infinite, or NaN"
    text = "Keep the weight of the average between 0 and 1: look at the division or the rate that makes it."
    code = _last_argument(facts, lambda inner: f"min(max({inner}, 0.0), 1.0)")
    return Cause("domain_error", (met,), (Suggestion(text, code or "a.lerp_(b, min(max(weight, 0.0), 1.0))"),), LIKELY)


def _last_argument(facts: Facts, guard: Callable[[str], str]) -> str | None:
    """Return the user's line with the last argument of the underlined call guarded, or ``None``."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call) or fitting.target(found[1], facts.op or "") is None:
        return None
    given = [*found[1].args, *(word.value for word in found[1].keywords)]
    wrapped = f"{found[0][: given[-1].col_offset]}{guard(ast.unparse(given[-1]))}{found[0][given[-1].end_col_offset :]}"
    return fitting.whole(facts.origin, wrapped)


def _infinities(fact: TensorFact) -> int:
    return fact.posinf + fact.neginf


def _met(op: str, given: tuple[TensorFact, ...]) -> str | None:
    """Return what met what, in words; None where that does not make NaN."""
    endless = words.bad_kind([fact for fact in given if _infinities(fact)])
    zeros = sum(fact.zeros for fact in given if not _infinities(fact))
    if op == "mul" and zeros:
        other = next(fact for fact in given if fact.zeros and not _infinities(fact))
        count = "" if other.numel == 1 else f": {words.count(zeros, 'zero')} on the other side"
        return f"0 times {endless} is NaN{count}"
    if op in _SUMS and all(map(_infinities, given)):
        return f"{endless} {_SUMS[op]} {endless} in the same place is NaN"
    return f"{endless} over {endless} is NaN" if op == "div" and all(map(_infinities, given)) else None


def _advice(facts: Facts, given: tuple[TensorFact, ...]) -> tuple[Suggestion, ...]:
    if given[-1].dtype == _NUMBER and _infinities(given[-1]):
        return (_of_number(facts, given[0], given[-1]),)
    averaged = _less_its_mean(facts, given)
    if averaged is not None:
        return (averaged,)
    fitted = _finite(facts)
    text = "Put a large finite number in the place of the infinity, which 0 makes 0 of."
    if facts.op != "mul":
        text = "Put large finite numbers in the place of the infinities."
    first = Suggestion(text, fitted or "x.clamp(-1e30, 1e30)")
    return (first, _entropy(facts)) if _is_entropy(facts) else (first,)


def _less_its_mean(facts: Facts, given: tuple[TensorFact, ...]) -> Suggestion | None:
    """``x - x.mean()``: a large number for the infinity would be all that is left of the mean."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub) or not isinstance(node.left, ast.Name):
        return None
    of = next((one for op in ("mean", "sum") if (one := fitting.target(node.right, op)) is not None), None)
    if of is None or ast.dump(of) != ast.dump(node.left) or not given[0].neginf or given[0].posinf:
        return None
    name = node.left.id
    made = "sum" if fitting.target(node.right, "sum") is not None else "mean"
    text = f"{name} holds -inf, and so its {made} is -inf: before this line, put"
    code = f"{name} = {name}.masked_fill({name} == -torch.inf, 0.0)"
    return Suggestion(f"{text} there what stands for such an element, 0 perhaps, or leave it out.", code)


def _of_number(facts: Facts, other: TensorFact, endless: TensorFact) -> Suggestion:
    """Say how to lay an infinity in where a mask is, which no product can do."""
    is_mask = facts.op == "mul" and (dtype_of(other) == "bool" or (other.min == 0.0 and other.max in {0.0, 1.0}))
    # Zeros alone are a mask that leaves nothing out, or anything else.
    if not is_mask or not (other.max or dtype_of(other) == "bool" or _is_written(facts)):
        kind = words.bad_kind([endless])
        what = _only_name(facts) or f"the number that goes into {facts.op}"
        return Suggestion(f"Look at what makes {what}, which is {kind} here: a division by 0, as a rule.")
    text = "0 times an infinity is not 0: put the infinity only where the mask has it."
    sign = "" if endless.posinf else "-"
    made = facts.origin.outputs[0].dtype if facts.origin.outputs else other.dtype
    cast = "" if dtype_of(other) == made.removeprefix("torch.") else f", dtype=torch.{made.removeprefix('torch.')}"
    code = _laid(facts, f'float("{sign}inf")', cast)
    return Suggestion(text, code or f'torch.zeros_like(mask{cast}).masked_fill(mask == 1, float("{sign}inf"))')


def _is_written(facts: Facts) -> bool:
    """Whether the infinity is written in the underlined expression, by a number or a name for it."""
    shown = (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]
    found = fitting.parsed(facts.origin)
    nodes = () if found is None else ast.walk(found[1])
    return any(isinstance(one, ast.expr) and _is_number(one) for one in nodes) or "inf" in shown.lower()


def _only_name(facts: Facts) -> str | None:
    """Return the one thing that the underlined method is given, where that is a name."""
    found = fitting.parsed(facts.origin)
    given = found[1].args if found is not None and isinstance(found[1], ast.Call) else []
    return ast.unparse(given[0]) if len(given) == 1 and isinstance(given[0], ast.Name | ast.Attribute) else None


def _laid(facts: Facts, infinity: str, cast: str) -> str | None:
    """Return the user's line with its ``mask * -inf`` as a ``masked_fill``, where its text tells the mask."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Mult):
        return None
    sides = [node for node in (found[1].left, found[1].right) if not _is_number(node)]
    if len(sides) != 1 or fitting.assigned(found) or "=" in found[0][: found[1].right.col_offset]:
        return None
    mask, where = ast.unparse(sides[0]), f"{fitting.bracketed(sides[0])} != 0"
    if isinstance(sides[0], ast.BinOp) and isinstance(sides[0].op, ast.Sub) and _is_one(sides[0].left):
        mask, where = ast.unparse(sides[0].right), f"{fitting.bracketed(sides[0].right)} == 0"
    return fitting.whole(facts.origin, f"torch.zeros_like({mask}{cast}).masked_fill({where}, {infinity})")


def _is_number(node: ast.expr) -> bool:
    """Whether a number is written there: ``1e9``, ``-math.inf``, ``float("-inf")``, ``NEG_INF``."""
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", None) == "float"
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return isinstance(node, ast.Constant) or "inf" in name.lower()


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _finite(facts: Facts) -> str | None:
    """Return the user's line with what is infinite bounded, where both sides can be told from its text."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.BinOp) or facts.op == "rsub":
        return None
    nodes = [found[1].left, found[1].right]
    if len(facts.origin.inputs) == 1:  # the other side is a number
        nodes = [node for node in nodes if not fitting.is_constant(node)]
    if len(facts.origin.inputs) != len(nodes):
        return None
    sides = zip(nodes, facts.origin.inputs, strict=True)
    bounds = [(node, _bound(fact)) for node, fact in sides if _infinities(fact)]
    return bounding.guarded(facts.origin, bounds)


def _bound(fact: TensorFact) -> str:
    far = _FAR.get(dtype_of(fact), "1e30")
    if fact.posinf and fact.neginf:
        return f".clamp(-{far}, {far})"
    return f".clamp_max({far})" if fact.posinf else f".clamp_min(-{far})"


def _entropy(facts: Facts) -> Suggestion:
    """Let torch take the entropy of what is exponentiated on one side of the underlined product."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    of = next((one for side in sides if (one := fitting.target(side, "exp")) is not None), None)
    name = ast.unparse(of) if isinstance(of, ast.Name | ast.Attribute) else "logits"
    text = "If it is an entropy: let torch take it, which leaves out what cannot happen."
    return Suggestion(text, f"torch.distributions.Categorical(logits={name}).entropy()")


def _is_entropy(facts: Facts) -> bool:
    """Whether a logarithm and its exponential are multiplied, by the names of what is underlined."""
    shown = (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]
    return facts.op == "mul" and "exp" in shown and any(fact.neginf for fact in facts.origin.inputs)

"""What to do where an exponential leaves its dtype: torch's own form, its logarithm, or a bound (reader side)."""

from __future__ import annotations

import ast
import math

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.exponentials import forms, totals
from nandiag.analysis.causes.mends.logarithms import log_space
from nandiag.analysis.causes.mends.logarithms.logarithm import Logarithm, least
from nandiag.analysis.causes.mends.scales import logged
from nandiag.analysis.causes.mends.script import fitting, meanings, parsing, quotients
from nandiag.analysis.report import Origin, Suggestion

OPS = {"exp": math.e, "expm1": math.e, "sinh": math.e, "cosh": math.e, "i0": math.e, "special_i1": math.e,
       "exp2": 2.0}  # fmt: skip
_LOGGED = {
    "logsumexp": "The logarithm of its sum is taken below: let torch do both here, and take no logarithm there.",
    "sum over parts": "It is summed, and the logarithm taken below: subtract the largest first (over ranks: all_reduce "
    "it with ReduceOp.MAX), and add it back behind the logarithm.",
}
_DOWN = (
    "All that goes into it is far above what an exponential is for, and behind a bound it has no gradient: bring it "
    "down where it is made, {}by its usual size."
)
_OF_SUM = "by a mean in the place of the sum, or "
# Both ends of what goes in lead to infinity.
EVEN = frozenset({"sinh", "cosh", "i0", "special_i1"})


def suggestions(facts: Facts, dtype: str) -> tuple[Suggestion, ...]:
    """Return torch's form of what the line, with those behind it, writes out by hand, else a bound."""
    op = facts.op or "exp"
    known = instead(facts)
    halved = _halved(facts, op) if known is None and dtype != "float16" else None
    if known is not None or halved is not None:
        return tuple(one for one in (known, halved) if one is not None)
    scale = logged.bounded(facts) or logged.weighed(facts)
    if scale is not None:
        return (scale,)
    if _all_above(facts) and facts.extra.get("of_weights") is True and facts.origin.inputs[0].numel > 1:
        return (Suggestion(_DOWN.format(_OF_SUM if _is_of_sum(facts, op) else "")),)
    weight = _as_weight(facts, op)
    bound = weight or _bounded(facts.origin, op, "10" if dtype == "float16" else _most(facts, op))
    many = any(len(fact.shape) > 1 for fact in facts.origin.inputs)
    ratio = forms.bare(facts.origin) if many and forms.may_be_summed(facts.uses) else None
    if ratio is None:
        return (bound,)
    text = "Where it is divided by its own sum, it is a softmax: let torch do it, which subtracts the maximum first."
    return (Suggestion(text, ratio), bound)


def _is_of_sum(facts: Facts, op: str) -> bool:
    """Whether what goes into it is a sum, by its text or by what autograd knows of it."""
    made, nodes = meanings.into(facts, op), facts.extra.get("made_by")
    summed = isinstance(nodes, list) and any(str(node).startswith(("Sum", "Cumsum")) for node in nodes)
    return summed or (made is not None and "sum(" in ast.unparse(made.node))


def instead(facts: Facts) -> Suggestion | None:
    """Return what takes the exponential's place, and does not overflow; ``None`` where the text shows nothing."""
    return in_one_step(facts) or _loss_itself(facts) or _shared(facts)


def mends_exponent(facts: Facts) -> bool:
    """Whether a mend is known of the exponential that overflowed, or of its scale: then no size of weights is meant."""
    if facts.op not in OPS or facts.node is not None:
        return False
    return instead(facts) is not None or logged.bounded(facts) is not None or logged.weighed(facts) is not None


def in_one_step(facts: Facts) -> Suggestion | None:
    """Return torch's function of what the line writes out by hand, or the lines in logarithms."""
    op = facts.op or "exp"
    form = forms.stable(facts.origin, op)
    taken = log_space.mended(facts) if op == "exp" and (form is None or form.name in _NOT_YET) else None
    if taken is not None or form is None:
        return taken
    if form.name in _OWN_FORMS:
        return Suggestion(f"This is {_OWN_FORMS[form.name]}: write it so that nothing in it overflows.", form.code)
    return Suggestion(f"This is a {form.name}: let torch do it, which does not overflow.", form.code)


# Of these torch has no function: it is its other functions that make them.
_OWN_FORMS = {
    "inverse softplus": "a softplus turned round", "log of a Bessel function": "the logarithm of a Bessel function",
    "ratio of Bessel functions": "a ratio of Bessel functions",
}  # fmt: skip


def _shared(facts: Facts) -> Suggestion | None:
    """It is divided by its own sum, or the logarithm of that is taken, in statements behind the line."""
    share = _weighed(facts) or forms.shared(facts.origin, facts.uses)
    if share is not None:
        text = "It is divided by its own sum below, and so it is a softmax: torch's subtracts the maximum first."
        return Suggestion(text, share)
    logged = forms.logged(facts.origin, facts.uses) if facts.op == "exp" else None
    if logged is not None:
        return Suggestion(_LOGGED[logged.name], logged.code)
    return (totals.divided(facts) or totals.logged(facts) or totals.grouped(facts)) if facts.op == "exp" else None


def _weighed(facts: Facts) -> str | None:
    """Return the line where the exponential is multiplied first, by a mask say: what that leaves out is no maximum."""
    nodes, dim = fitting.nodes_of(facts.origin.source or ""), forms.shared_along(facts.uses)
    made = next((node for node in nodes if isinstance(node, ast.Assign)), None)
    product = made.value if made is not None else None
    if dim is None or made is None or not isinstance(product, ast.BinOp):
        return None
    taken = Logarithm(None, summed=True, least=least(facts))
    text = taken.of(product)
    name, left = made.targets[0], any("exp(" in ast.unparse(one) for one in taken.left)
    if taken.undone != ["exp"] or left or not isinstance(name, ast.Name) or len(made.targets) > 1:
        return None
    return f"{name.id} = torch.softmax({text}, dim={dim})"


def _loss_itself(facts: Facts) -> Suggestion | None:
    """The loss is the exponential of what is above a bound: with that it would have no gradient, and train nothing."""
    found, given = fitting.parsed(facts.origin), facts.origin.inputs[0]
    part = forms.exponent(found[1]) if found is not None and _is_all_of(facts.origin, found[1]) else None
    name = (facts.origin.source or "").partition("=")[0].strip()
    trained = any(use.startswith(f"{name}.backward(") for use in facts.uses)
    one = given.numel == 1
    if part is None or not (one or _all_above(facts)) or not trained or facts.extra.get("of_weights") is not True:
        return None
    of = "of one number, and above a bound" if one else f"of numbers that are all above {_USUAL_BOUND}: with a bound"
    least = "that number, which has its least in the same place" if one else "these numbers (bring a sum to a mean)"
    text = f"The loss is the exponential {of} nothing would be trained: train on {least}, and take the exponential "
    return Suggestion(f"{text}for what is shown.", fitting.whole(facts.origin, ast.unparse(part)))


def _all_above(facts: Facts) -> bool:
    """Whether all that went in is above the bound that would be told: it would leave no gradient."""
    return (facts.origin.inputs[0].min or 0.0) > _USUAL_BOUND_AT


def _is_all_of(origin: Origin, exponential: ast.expr) -> bool:
    """Whether the line assigns the exponential alone, or one number's mean or sum: a term, or a factor, is no loss."""
    made = parsing.statement((origin.source or "").strip())
    value = made.value if isinstance(made, ast.Assign) else None
    while value is not None and ast.dump(value) != ast.dump(exponential):
        value = next((one for op in ("mean", "sum", "squeeze") if (one := fitting.target(value, op)) is not None), None)
    return value is not None


# These end in 0 where their logarithm is taken further on.
_NOT_YET = frozenset({"softmax", "sigmoid"})


def _most(facts: Facts, op: str) -> str:
    """Return a bound above what went into the exponential and did no harm, where that is far below the edge."""
    largest = max((fact.max or 0.0 for fact in facts.origin.outputs), default=0.0)
    usual = math.log(largest, OPS[op]) if largest > 1.0 else 0.0
    return _USUAL_BOUND if not _USUAL_BOUND_AT < usual <= _HIGHEST_BOUND else str(math.ceil(usual / 10 + 0.5) * 10)


def _as_weight(facts: Facts, op: str) -> Suggestion | None:
    """Bound the weight of one sample among others: an advantage's, or a ratio of probabilities.

    By one that trains with no gradient of its own, or by a difference of two logarithms, something is multiplied. Far
    above what others weigh one alone moves the model, and fills what an optimizer keeps.
    """
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "exp" else fitting.target(found[1], op)
    given = None if part is None else meanings.behind(facts, part).node
    fixed = facts.extra.get("of_weights") is False
    ratio = isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)
    largest = max((fact.max or 0.0 for fact in facts.origin.outputs), default=0.0)
    if found is None or not (fixed or ratio) or fitting.clamped(facts.origin, op) is not None:
        return None
    if largest > math.exp(_WEIGHT) or facts.origin.phase not in {"forward", "loss"} or not _multiplies(facts, found[1]):
        return None
    code = fitting.argument(facts.origin, op, lambda text: f"{text}.clamp(max={_WEIGHT})")
    text = f"It weighs what it is multiplied by: bound what goes into it, so that no weight is above e**{_WEIGHT}, 148."
    return None if code is None else Suggestion(text, code)


def _multiplies(facts: Facts, exponential: ast.expr) -> bool:
    """Whether the exponential, or the name that it alone is given, is a factor in the line or behind it."""
    line = parsing.statement((facts.origin.source or "").strip())
    alone = isinstance(line, ast.Assign) and ast.dump(line.value) == ast.dump(exponential)
    own = {ast.dump(exponential)}
    if alone and isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
        own.add(ast.dump(ast.Name(line.targets[0].id, ast.Load())))
    trees = [tree for text in facts.uses if (tree := parsing.statement(text)) is not None]
    nodes = [node for tree in ([] if line is None else [line, *trees]) for node in ast.walk(tree)]
    products = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    return any(ast.dump(quotients.looked_at(side, _LOOKS)) in own for one in products for side in (one.left, one.right))


_LOOKS = meanings.VIEWS | {"detach"}
_WEIGHT = 5
_USUAL_BOUND, _USUAL_BOUND_AT, _HIGHEST_BOUND = "20", 20.0, 60.0


def _halved(facts: Facts, op: str) -> Suggestion | None:
    """A deviation made of a logarithm (``exp(0.5 * logvar)``): the variance, its square, is made of it as well."""
    found = fitting.parsed(facts.origin)
    part = None if found is None or op != "exp" else fitting.target(found[1], op)
    sides = (part.left, part.right) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult | ast.Div) else ()
    name = next((side.id for side in sides if isinstance(side, ast.Name)), None)
    number = next((side.value for side in sides if isinstance(side, ast.Constant)), None)
    half = 0.5 if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) else 2
    if name is None or "var" not in name.lower() or number != half:
        return None
    text = f"Bound {name} itself, before this line, where it need not go above {_USUAL_BOUND}: its exponential is next."
    return Suggestion(text, f"{name} = {name}.clamp(max={_USUAL_BOUND})")


def _bounded(origin: Origin, op: str, most: str) -> Suggestion:
    """Say how to bound what goes in: far below the edge of the dtype, for what comes after multiplies and sums."""
    clamp, there = (f"clamp(-{most}, {most})", f"beyond -{most} and {most}") if op in EVEN else (
        f"clamp(max={most})", f"above {most}"
    )  # fmt: skip
    name = op.removeprefix("special_")
    within = fitting.clamped(origin, name)
    if within is not None:
        code = fitting.argument(origin, name, lambda _: f"{within}.{clamp}")
        return Suggestion(f"It is clamped already, and not enough: it need not go {there}.", code)
    code = fitting.arguments(origin, name, lambda text: f"{text}.{clamp}")  # the others break at the same values
    general = f"torch.{op.replace('_', '.')}(x.{clamp})"
    if code is not None and _is_logged(origin):
        text = f"Its logarithm is taken, which grows as what goes in does, and a bound would hold it at {most}: "
        return Suggestion(f"{text}write it in logarithms, by torch.logsumexp or torch.logaddexp, say.")
    return Suggestion(f"Bound what goes into it, where it need not go {there}.", code or general)


def _is_logged(origin: Origin) -> bool:
    """Whether the line takes the logarithm of what the underlined op gives, or of a product or a sum with it."""
    found, source = fitting.parsed(origin), (origin.source or "").strip()
    own = None if found is None else ast.dump(found[1])
    calls = [one for one in fitting.nodes_of(source) if isinstance(one, ast.Call)]
    logs = [given for one in calls for name in _LOGS if (given := fitting.target(one, name)) is not None]
    return any(ast.dump(part) == own for given in logs for part in _parts(given))


_LOGS = ("log", "log2", "log10")


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the terms and factors of an expression, and what its sums and means are taken of."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Pow):
        return [*_parts(node.left), *_parts(node.right)]
    summed = fitting.target(node, "sum") or fitting.target(node, "mean")
    return [node] if summed is None else _parts(summed)

"""A half-precision number that was rounded to zero and then divided by (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.division_by_zero import DIVISIONS, RATIOS, RECIPROCALS
from nandiag.analysis.causes.facts import HALF, LIKELY, NEAR_ONE, POSSIBLE, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.script import bounding, fitting, meanings, parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="precision_underflow",
    what="A number was rounded to zero, or to one, by half precision, and then divided by or taken the logarithm "
    "of. Below 2.9e-8 float16 is 0, and eps=1e-8 is 0 in it; bfloat16 has only 3 digits, so that 1 - p is 0 "
    "long before p is 1.",
    looks=(
        (
            "error[precision_underflow]: NaN and Inf born on ranks 0-1 at step 0 in the update of items.weight and "
            "3 more"
        ),
        (
            "the divisor of the update is 0 in float16: an eps of 1e-8 is 0 in it, and so is the square of a small "
            "gradient"
        ),
    ),
    fix=(
        Suggestion(
            "Compute this quantity in float32.",
            "b = b.float()",
        ),
        Suggestion(
            "Keep weights and optimizer in float32, and use autocast for speed.",
            "model.float()",
        ),
        Suggestion(
            "Or give the optimizer an eps that the dtype can hold.",
            "torch.optim.Adam(model.parameters(), eps=1e-4)",
        ),
    ),
    pages=(
        "amp.html",
        "type_info.html",
        "generated/torch.optim.Adam.html",
    ),
)

# A little less than half of the smallest number that there is, up to which it is rounded to 0.
_TO_ZERO = {"float16": "2.9e-8", "bfloat16": "4.5e-41"}
_IN_FLOAT32 = (
    "Keep the weights and the optimizer in float32, and so what the model is called with (leave out its .half()), and "
    "use autocast for speed."
)
_LOGS = frozenset({"log", "log2", "log10"})
# What comes as near to 1 as its argument is large, or small: each by its autograd node, and by its name.
_NEAR_ONE_BY = ("Sigmoid", "Softmax", "Exp", "Tanh", "Erf", "Cos", "Sin")
_NEAR_ONE_CALLS = frozenset(one.lower() for one in _NEAR_ONE_BY)
_BOUNDS = {"clamp": 1, "clip": 1, "clamp_max": 0}  # at which place among the numbers the upper one is
_COARSE = "it has 3 digits, so that 1 - 0.999 is 0 in it, and a small eps is lost in a sum"


def explain(facts: Facts) -> Cause | None:
    """Name the rounding behind a zero divisor: sure enough in an optimizer's update, whose eps should prevent it."""
    op, inputs = facts.op or "", facts.origin.inputs
    if op in _LOGS:
        return _of_rest(facts, op)
    if not facts.finite_inputs or facts.node is not None or op not in {*DIVISIONS, *RATIOS, *RECIPROCALS}:
        return None
    divisor = inputs[min(RATIOS.get(op, 0 if op in RECIPROCALS else 1), len(inputs) - 1)]
    dtype = dtype_of(divisor)
    if dtype not in HALF or not divisor.zeros:
        return None
    if facts.in_update:
        return None if facts.divides_zeros else _in_update(facts, dtype)
    near = words.number(NEAR_ONE[dtype])
    lost = f"{dtype} rounds what is below {_TO_ZERO[dtype]} to 0, and all within {near} of 1 to 1"
    return Cause(
        slug="precision_underflow",
        evidence=(f"The divisor is {dtype}: {lost}.",),
        # A small number that is added to the divisor, and lost in it, is what was to keep it from 0.
        strength=LIKELY if bounding.has_eps((facts.origin.source or "").strip(), "div", 0.0) else POSSIBLE,
        story=True,
    )


def _of_rest(facts: Facts, op: str) -> Cause | None:
    """Name the rounding behind the logarithm of 1 - p: half precision makes 1 of a p next to it, and of a bound."""
    given = facts.origin.inputs[0] if facts.finite_inputs else None
    part = None if given is None or facts.node is not None or not given.zeros else meanings.into(facts, op)
    if given is None or part is None or (dtype := dtype_of(given)) not in HALF:
        return None
    rest = part.node.right if isinstance(part.node, ast.BinOp) and isinstance(part.node.op, ast.Sub) else None
    if rest is None or ast.unparse(part.node).partition(" - ")[0] not in {"1", "1.0"}:
        return None
    name = ast.unparse(rest)
    bounds = _bounds_of(facts, rest)
    text = f"{dtype} rounds all within {words.number(NEAR_ONE[dtype])} of 1 to 1: so {name} is 1, and 1 - {name} is 0"
    if bounds is None:
        if not _is_squashed(facts, rest):
            return None  # a mask of ones is 1 by itself, and no rounding made it so
        return Cause("precision_underflow", (f"{text}.",), (), POSSIBLE, story=True)
    told = f"{text}. The bound of {bounds[0]} does not help: {bounds[1]} itself is 1 in {dtype}."
    return Cause("precision_underflow", (told,), (), LIKELY, story=True)


def _is_squashed(facts: Facts, node: ast.expr) -> bool:
    """Whether a function that comes near 1 made it, by its graph or by the script's text."""
    nodes = facts.extra.get("made_by")
    made = isinstance(nodes, list) and any(str(one).partition("Backward")[0] in _NEAR_ONE_BY for one in nodes)
    texts = (node, _kind_of(facts, node))
    return made or any(_comes_near_one(one, facts) for text in texts if text is not None for one in ast.walk(text))


def _kind_of(facts: Facts, node: ast.expr) -> ast.expr | None:
    """Return the expression that the script has a name for."""
    text = facts.kind(ast.unparse(node))
    return parsing.expression(text) if text else None


def _comes_near_one(node: ast.AST, facts: Facts) -> bool:
    """Whether it is a call of such a function, by the last word of its name, or a part divided by the sum of all."""
    if isinstance(node, ast.Call):
        name = _last_name(node)
        return not name.startswith("log") and name.rpartition("_")[2] in _NEAR_ONE_CALLS
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    part, whole = ast.unparse(node.left), (node.right, _kind_of(facts, node.right))
    sums = (one for text in whole if text is not None for one in ast.walk(text) if isinstance(one, ast.Call))
    return any(_last_name(one) == "sum" and part in _summed(one) for one in sums)


def _last_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2].strip("_").lower()


def _summed(call: ast.Call) -> list[str]:
    """Return what a call of ``sum`` may add up: what it is a method of, or what it is given first."""
    own = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [ast.unparse(one) for one in (*own, *call.args[:1])]


def _bounds_of(facts: Facts, node: ast.expr) -> tuple[str, str] | None:
    """Return the call that was to keep it below 1, as the script has it, and the bound in it, which may be 1 itself."""
    text = facts.kind(ast.unparse(node)) or ast.unparse(node)
    made = parsing.expression(text)
    name = next((one for one in _BOUNDS if made is not None and fitting.target(made, one) is not None), None)
    if name is None or not isinstance(made, ast.Call):
        return None
    # The numbers behind what is bounded, which a method has in front.
    numbers = [one for one in made.args if one is not fitting.target(made, name)]
    named = [one.value for one in made.keywords if one.arg == "max"]
    most = next(iter((*named, *numbers[_BOUNDS[name] :])), None)
    number = most.value if isinstance(most, ast.Constant) else None
    if isinstance(number, int | float) and 1 - number > NEAR_ONE[dtype_of(facts.origin.inputs[0])]:
        return None
    return None if most is None else (text, ast.unparse(most))


def _in_update(facts: Facts, dtype: str) -> Cause:
    small = "an eps of 1e-8 is 0 in it, and so is the square of a small gradient"
    text = f"the divisor of the update is 0 in {dtype}: {small if dtype == 'float16' else _COARSE}"
    return Cause(
        slug="precision_underflow",
        evidence=(text,),
        suggestions=(
            Suggestion(_IN_FLOAT32, f"{facts.called('handed', 'model')}.float()  # before the optimizer is made"),
            Suggestion("Or give the optimizer an eps that the dtype can hold.", "eps=1e-4"),
        ),
        strength=LIKELY,
        story=True,
    )

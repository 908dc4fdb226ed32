"""log(0): the logarithm, or its gradient, at an exact zero (reader side)."""

from __future__ import annotations

import ast
import math
import posixpath
import re
from dataclasses import replace

from nandiag.analysis.causes import binary
from nandiag.analysis.causes.facts import HALF, Cause, Facts, dtype_of, share
from nandiag.analysis.causes.mends import by_hand, densities
from nandiag.analysis.causes.mends.exponentials import recurrences
from nandiag.analysis.causes.mends.logarithms import handed, left_out, log_space, probabilities, scores, shared
from nandiag.analysis.causes.mends.matrices import determinants
from nandiag.analysis.causes.mends.scales import measured
from nandiag.analysis.causes.mends.script import bounding, fitting, masks, meanings, parsing, quotients
from nandiag.analysis.causes.mends.script.guards import least
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="log_of_zero",
    what="A logarithm was given an exact zero, or its gradient 1/x was, or a number so small that 1/x leaves the "
    "dtype. Probabilities that a softmax or a sigmoid rounded to 0, and empty bins, are the usual ones.",
    looks=(
        "error[log_of_zero]: -Inf born on rank 1 at step 417 in forward of blocks.2.attn",
        "the input of log holds 5 zeros in 2,048 values; log(0) is -inf",
    ),
    fix=(
        Suggestion(
            "Take the logarithm of a softmax or sigmoid in one step.",
            "F.log_softmax(z, dim=-1)\nF.binary_cross_entropy_with_logits(z, y)",
        ),
        Suggestion(
            "Keep the argument away from zero, in float32: 1e-8 is itself 0 in float16.",
            "torch.log(x.float().clamp_min(1e-12))",
        ),
        Suggestion(
            "x * log(x) at 0 is 0: let torch say so.",
            "torch.xlogy(x, x)",
        ),
    ),
    pages=(
        "generated/torch.nn.functional.log_softmax.html",
        "generated/torch.nn.BCEWithLogitsLoss.html",
        "generated/torch.xlogy.html",
    ),
)

# Of a table, so many times as many values as there are zeros say what its values are like.
_FEW = 4
# One over what is smaller is larger than the dtype holds, or nearly so.
_TINY = {"float16": 2e-5, "bfloat16": 1e-37, "float32": 1e-37, "float64": 1e-307}
LOGS = frozenset({"log", "log2", "log10"})
_TANH = "2 * (0.6931472 - u - torch.nn.functional.softplus(-2 * u))"
_SQUASHED = re.compile(r"\b1(\.0?)? - [\w.()]+?(\.pow\(2\)|\.square\(\)| ?\*\* ?2)")
# What made the input, the last node first -> the logarithm of it in one step.
_FORMS: tuple[tuple[tuple[tuple[str, ...], ...], str, str], ...] = (
    ((("Softmax",),), "What it is taken of is a softmax: take both in one step, of the scores.",
     "F.log_softmax(scores, dim=-1)"),
    ((("Sigmoid",),), "What it is taken of is a sigmoid: take both in one step, of the scores.",
     "F.logsigmoid(scores)"),
    ((("Rsub",), ("Sigmoid",)), "It is taken of 1 - sigmoid(scores): take all in one step.",
     "F.logsigmoid(-scores)"),
    ((("Rsub",), ("Pow", "Mul"), ("Tanh",)),
     "It is taken of 1 - tanh(u)**2: there is a form that is exact, of the u that tanh is given.", _TANH),
    ((("Sum",), ("Mul", "Exp", "Div")),
     "Where it is taken of a sum of probabilities, add logarithms: log_p is that of each, without its exponential.",
     "torch.logsumexp(log_p, dim=-1)"),
)  # fmt: skip


# These hand values on as they are.
_HANDED_ON = ("Stack", "Cat", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Select", "Slice", "Transpose",
              "Permute", "Gather", "Clone", "Alias", "Index", "ToCopy", "Diag", "MaskedSelect",
              "TakeAlongDim")  # fmt: skip


def explain(facts: Facts) -> Cause | None:
    """Name log(0) where a logarithm has zeros in its input, or where its gradient divides by one."""
    if not facts.finite_inputs:
        return None
    given = facts.origin.inputs[-1 if facts.op == "xlogy" else 0]
    if (
        facts.node is None
        and facts.op in {*LOGS, "xlogy"}
        and given.zeros
        and (facts.op in LOGS or not facts.outputs_nan)
    ):
        what = "is" if given.numel == 1 else "holds"
        return _cause(facts, facts.op, f"the input of {facts.op} {what} {share(given.zeros, given)}; log(0) is -inf")
    if facts.node is None and facts.op == "log1p" and given.min == -1.0:
        return _cause(facts, "log1p", "the input of log1p goes to -1; log(0) is -inf")
    if facts.node is None and facts.op == "special_xlog1py" and facts.origin.inputs[-1].min == -1.0:
        return _cause(facts, "xlog1py", "the second input of xlog1py goes to -1; log(0) is -inf")
    if facts.forward_op in LOGS:
        return _gradient(facts, facts.origin.inputs[1:] or (given,))
    return None


def _gradient(facts: Facts, arguments: tuple[TensorFact, ...]) -> Cause | None:
    """The gradient of a logarithm: its argument is zero, or so small that one over it leaves the dtype."""
    op = facts.forward_op or "log"
    held = next((fact for fact in arguments if fact.zeros), None)
    if held is not None:
        text = f"the gradient of {op} is 1/x, and x {'is' if _single(held) else 'holds'} "
        return _cause(facts, op, text + share(held.zeros, held))
    small = next((fact for fact in arguments if 0.0 < (fact.min or 0.0) < _TINY.get(dtype_of(fact), 0.0)), None)
    if small is None:
        return None
    text = f"the gradient of {op} is 1/x, and x goes down to {words.number(small.min)}"
    return _cause(facts, op, f"{text}: 1/x leaves {dtype_of(small)}")


def _least_of_table(facts: Facts, given: TensorFact) -> str | None:
    """Return a bound next to the least of the others, of a table that is made once: far below them it would rule all.

    That is what is made before training, and shares that an index looks up, of whatever was counted.
    None where few of its values are above 0.
    """
    absmin = given.absmin
    few = given.zeros * _FEW <= given.numel
    made_once = facts.extra.get("birth") == "op" or (_is_looked_up(facts) and (given.max or 0.0) <= 1.0)
    if not made_once or given.min != 0.0 or not absmin or not few:
        return None
    power = math.floor(math.log10(absmin))
    return f"{math.floor(absmin / 10.0 ** (power - 1)) / 10}e{power}"


def _is_looked_up(facts: Facts) -> bool:
    """Whether it is the logarithm of ``table[index]``, which is not trained."""
    found = fitting.parsed(facts.origin)
    given = None if found is None else fitting.target(found[1], facts.op or "log")
    if not isinstance(given, ast.Subscript) or facts.extra.get("of_weights") is not False:
        return False
    return all(isinstance(one, ast.Name | ast.Attribute) for one in (given.value, given.slice))


def _single(fact: TensorFact | None) -> bool:
    return fact is not None and fact.numel == 1


def _cause(facts: Facts, op: str, text: str) -> Cause:
    sized = determinants.in_one_step(facts, op) or recurrences.scaled(facts) or probabilities.of_product(facts, op)
    if sized is not None:
        return Cause("log_of_zero", (text,), (sized,))
    dtypes = {dtype_of(fact) for fact in facts.origin.inputs}
    small = " A small constant like 1e-8 is itself 0 in float16." if "float16" in dtypes else ""
    given = facts.origin.inputs[-1 if op == "xlogy" else 0]
    bound = "-1 + 1e-6" if op in {"log1p", "xlog1py"} else _least_of_table(facts, given) or least(given)
    narrow = "float16" in dtypes  # bfloat16 holds the bound, and what comes behind needs the dtype that it had
    guard = f"{'float().' if narrow else ''}clamp_min({bound})"
    asked = densities.mended(facts)
    if asked is not None:
        return Cause("log_of_zero", (text,), (asked,))
    counted = _of_counts(facts, op) or measured.logged(facts, op, given)
    if counted:
        return Cause("log_of_zero", (text,), counted)
    place = bounding.second if op in {"xlogy", "xlog1py"} else fitting.argument
    within = replace(facts, origin=bounding.mirrored(bounding.beside(facts.origin, op, guard), op))
    fitted = place(within.origin, op, lambda inner: f"{inner}.{guard}")
    if narrow and within.origin is facts.origin:
        fitted = _brought_back(facts.origin, op, guard) or fitted
    around = Suggestion(f"Keep the argument of the logarithm away from zero.{small}", fitted or f"x.{guard}.{op}()")
    keep, *bounded = _ratio(facts, op, around)
    added = probabilities.instead(facts, op) or log_space.without_zeros(facts)
    known = None if added is not None else scores.in_one_step(facts, op, guard)
    own = probabilities.handed_back(facts, op) if added is None else None
    forms = _in_one_step(facts) if own is None else (own,)
    masked = _is_masked(facts, op, next((one.code or "" for one in (known, *forms) if one is not None), ""))
    added = added if known is None or masked else known
    if added is not None:
        return Cause("log_of_zero", (text,), (added, keep))
    ahead = None if narrow else shared.where_made(facts, op, "", ahead=True)  # too late for that before this line
    if (scale := ahead or by_hand.scale(facts)) is not None:
        return Cause("log_of_zero", (text,), (scale,))
    kept = (left_out.terms(facts, op, keep) if masked else keep, *bounded)
    return Cause("log_of_zero", (text,), kept if masked else _beside(facts, op, kept, forms, fitted=fitted is not None))


def _beside(
    facts: Facts, op: str, kept: tuple[Suggestion, ...], forms: tuple[Suggestion, ...], *, fitted: bool
) -> tuple[Suggestion, ...]:
    """Return the bounds beside what is to be done where the input is made: first what fits the line as it stands."""
    given = facts.origin.inputs[-1 if op == "xlogy" else 0]
    # Behind a bound what is 0 has no gradient: where most is, nothing would be trained any more.
    half = given.numel > 1 and 2 * given.zeros >= given.numel
    nothing = half and facts.extra.get("of_weights") is True
    forms = (*([_softened(facts, op)] if nothing and _is_relu(facts) else []), *forms)
    elsewhere = fitted and not nothing and all(one.code != _TANH for one in forms)
    return (*kept, *forms) if elsewhere else (*forms, *kept)


def _is_masked(facts: Facts, op: str, form: str) -> bool:
    """Whether the ``form`` that has the logarithm in it is of scores of -inf, of which it is -inf, too."""
    given = facts.origin.inputs[-1 if op == "xlogy" else 0]
    shares = "log_softmax(" in form and masks.left_out_of(given)
    return bool(form) and form != _TANH and (shares or masks.is_laid(facts))


_SOFT = Suggestion(
    "It comes out of a relu: where that is 0 no gradient goes back, nor through a bound. Take a softplus in its place.",
    "torch.nn.functional.softplus(z)",
)


def _softened(facts: Facts, op: str) -> Suggestion:
    """Return the line that makes it with a softplus for the relu, where the text shows that line."""
    made = meanings.into(facts, op)
    inner = None if made is None else fitting.target(made.node, "relu")
    if made is None or made.meaning is None or inner is None:
        return _SOFT
    where = "" if made.inside else f" of {posixpath.basename(made.meaning.file)}"
    told = f"{made.meaning.name} comes out of a relu, in line {made.meaning.line}{where}: where that is 0 no gradient "
    code = f"torch.nn.functional.softplus({ast.unparse(inner)}) + 1e-6"
    text = f"{told}goes back, nor through a bound. Take a softplus in its place."
    return Suggestion(text, f"{made.meaning.name} = {code}" if made.inside else code)


def _is_relu(facts: Facts) -> bool:
    """Whether what it is taken of was made by a relu, as far as it is known."""
    nodes = facts.extra.get("made_by")
    made = [str(node) for node in nodes if not str(node).startswith(_HANDED_ON)] if isinstance(nodes, list) else []
    return bool(made) and made[0].startswith("Relu")


def _brought_back(origin: Origin, op: str, guard: str) -> str | None:
    """Return the user's line with the logarithm of float32, as the float16 that what comes behind is made for."""
    found = fitting.parsed(origin)
    part = None if found is None else fitting.target(found[1], op)
    if found is None or part is None or not isinstance(found[1], ast.Call):
        return None
    return fitting.whole(origin, f"{fitting.put(found[0], part, lambda inner: f'{inner}.{guard}')}.half()")


def _of_counts(facts: Facts, op: str) -> tuple[Suggestion, ...] | None:
    """The logarithm of whole numbers: behind a bound it would be a number far from all others."""
    whole = facts.extra.get("whole") is True or "int" in dtype_of(facts.origin.inputs[0])
    if not whole or op != "log" or facts.node is not None:
        return None
    code = fitting.renamed(facts.origin, "log", "log1p")
    one = fitting.argument(facts.origin, "log", "{}.clamp_min(1)".format)
    least = "It is taken of whole numbers: at least 1 leaves all others as they are."
    text = "Or, if they are counts to learn from, take log(1 + x) throughout, which tells 0 from 1."
    missing = "If 0 stands for what is missing: leave it out before this line."
    return (
        Suggestion(least, one or "x.clamp_min(1).log()"),
        Suggestion(text, code or "torch.log1p(x)"),
        Suggestion(missing),
    )


_ABOVE = "Where what stands below is never 0, a bound around the quotient is enough."


def _ratio(facts: Facts, op: str, bound: Suggestion) -> tuple[Suggestion, ...]:
    """The logarithm of a ratio of data: the 0 above the line may stand below it next, and 0/0 no ``bound`` mends."""
    found = fitting.parsed(facts.origin)
    part = None if found is None or op not in {"log", "log2", "log10"} else fitting.target(found[1], op)
    if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Div) or isinstance(part.right, ast.Constant):
        return (bound,)
    if found is not None and bounding.is_chosen(facts.origin):
        return (_of_a_branch(facts, found[0], part) or bound,)
    same, loaded = _is_of_itself(part), facts.origin.phase == "data" or "dataset" in facts.extra
    of_data = loaded or facts.extra.get("of_weights") is False
    if found is None or not (of_data or same) or dtype_of(facts.origin.inputs[0]) in HALF:
        return (bound,)
    odd = _odds(part)
    if odd is not None:
        return (odd,)
    sides = parsing.written("({} + 1e-12) / ({} + 1e-12)", part.left, part.right)
    code = fitting.line_of(facts.origin, found[0], part, lambda _: sides)
    apart = None if same else left_out.samples(facts, op, part)
    if apart is not None:
        return apart
    both = Suggestion("Keep both sides of the ratio away from zero: what is 0 above may be 0 below next.", code)
    return (both,) if same else (both, replace(bound, text=_ABOVE))


def _is_of_itself(part: ast.BinOp) -> bool:
    """Whether both sides are of one table, as those of ``w[1:] / w[:-1]`` are: the 0 above is divided by as well."""
    left, right = (quotients.looked_at(one) for one in (part.left, part.right))
    return left is not part.left and ast.dump(left) == ast.dump(right)


def _of_a_branch(facts: Facts, line: str, part: ast.BinOp) -> Suggestion | None:
    """A branch of ``torch.where`` that is not taken has a gradient all the same: 0/0 there is NaN as log(0) is."""
    bounds = parsing.written("({} / {}.clamp_min(1e-12)).clamp_min(1e-12)", part.left, part.right)
    code = fitting.line_of(facts.origin, line, part, lambda _: bounds)
    text = (
        "torch.where takes it for some values alone, but it is computed for all: keep the argument away from zero, and "
    )
    return None if code is None else Suggestion(f"{text}what it is divided by, lest 0/0 be NaN there next.", code)


def _odds(part: ast.BinOp) -> Suggestion | None:
    """(1 + a) / (1 - a), p / (1 - p): what is 0 or infinite there is so in other forms of the same a, further down."""
    below = part.right
    if not isinstance(below, ast.BinOp) or not isinstance(below.op, ast.Sub) or ast.unparse(below.left) not in _ONES:
        return None
    name, above = ast.unparse(below.right), ast.unparse(part.left)
    both = above in {f"{one} + {name}" for one in _ONES} | {f"{name} + {one}" for one in _ONES}
    if not isinstance(below.right, ast.Name) or not (both or above == name):
        return None
    low = "-1 + 1e-6" if both else "1e-6"
    text = f"Keep {name} within its range, away from both ends, before this line: what comes behind may use it too."
    return Suggestion(text, f"{name} = {name}.clamp({low}, 1 - 1e-6)")


_ONES = ("1", "1.0")


_BOTH = "It is the binary cross-entropy of a sigmoid: let torch take it of the scores, which the sigmoid is given."


def _cross_entropy(origin: Origin) -> str | None:
    """Return torch's form where the line has log(p) and log(1 - p), each times something."""
    target = binary.target(origin)
    return None if target is None else f"torch.nn.functional.binary_cross_entropy_with_logits(scores, {target})"


def _in_one_step(facts: Facts) -> tuple[Suggestion, ...]:
    """Return the form that has the logarithm in it, where what made its input was seen."""
    nodes = facts.extra.get("made_by")
    named = [str(node) for node in nodes] if isinstance(nodes, list) else []
    made = [node for node in named if not node.startswith((*_HANDED_ON, "Clamp"))]
    bounded = len(made) < len([node for node in named if not node.startswith(_HANDED_ON)])
    both = _cross_entropy(facts.origin) if any(node.startswith("Sigmoid") for node in made) else None
    if both is not None:
        return (Suggestion(_BOTH, both),)
    for form, text, code in _FORMS:
        if len(made) >= len(form) and all(node.startswith(names) for node, names in zip(made, form, strict=False)):
            # Behind the script's own bound its names are no scores: what they stand for would have to be another.
            return (Suggestion(text, code) if bounded else handed.back(facts, text, code),)
    shown = (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]
    squashed = not made and _SQUASHED.search(shown)
    return (
        (Suggestion("Where it is 1 - tanh(u)**2, there is a form that is exact, of that u.", _TANH),)
        if squashed
        else ()
    )

"""A softmax over a row that is -inf everywhere, all of it masked; the gradient of a logsumexp of such (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import LARGEST, LIKELY, PROVEN, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.masked import chosen
from nandiag.analysis.causes.mends.script import bounding, fitting, masks, meanings, naming, quotients
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="attention_fully_masked",
    what="A softmax ran over a row that is -inf everywhere, because a mask left nothing of it: 0/0 is NaN. "
    "Padding longer than a sample, a causal mask "
    "combined with left padding, or two masks that each hold the lowest finite number make such rows.",
    looks=(
        "error[attention_fully_masked]: NaN born on rank 0 at step 24 in forward of layers.0.attention",
        "a whole row of the input of softmax is -inf; its softmax is 0/0",
    ),
    fix=(
        Suggestion(
            "Leave at least one position of each row unmasked; what a padded query attends to does not matter. The "
            "first line is for a mask whose True hides (key_padding_mask), the second for one whose True keeps "
            "(scaled_dot_product_attention).",
            "mask = mask.masked_fill(mask.all(-1, keepdim=True), False)\nmask = mask | ~mask.any(-1, keepdim=True)",
        ),
        Suggestion(
            "Combine masks as booleans, and fill once with a large finite number.",
            "scores.masked_fill(a | b, torch.finfo(scores.dtype).min)",
        ),
        Suggestion(
            "Or drop samples that hold nothing but padding while loading.",
        ),
    ),
    pages=(
        "generated/torch.nn.functional.scaled_dot_product_attention.html",
        "generated/torch.nn.MultiheadAttention.html",
        "generated/torch.Tensor.masked_fill.html",
    ),
)

SOFTMAX = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"})
_LOGARITHMS = ("log_softmax", "cross_entropy")
ATTENTION = "scaled_dot_product"
_SUMS = frozenset({"add", "sub"})
# The gradients of these are made of exp(x - result), where both are -inf.
_SUMS_OF_EXPONENTIALS = ("Logsumexp", "Logaddexp")
_LOW = {"float16": "-1e4"}
_HIDES_THE_PAST = "the mask is upside down: it hides each position and all before it, and leaves what comes after"
_INVERT = Suggestion(
    "Invert the mask: a boolean one hides where it is True in torch.nn.MultiheadAttention and the Transformer layers, "
    "and where it is False in scaled_dot_product_attention.",
    "mask = ~mask  # of numbers: torch.full((n, n), float('-inf')).triu(1)",
)
_LEAVE_ONE = "Leave at least one position of each row unmasked"
_NO_ONE = "where the mask leaves nothing of a row, let it hide nothing there"


def explain(facts: Facts) -> Cause | None:
    """Name a fully masked row: softmax gives NaN from -inf alone only where a whole row is -inf."""
    op = facts.op or ""
    if facts.node is not None and facts.node.startswith(_SUMS_OF_EXPONENTIALS):
        return _gradient(facts) if op == "sub" else None
    if op in _SUMS:
        return _two_masks(facts) if op == "add" else _less_its_maximum(facts)
    if not facts.outputs_nan or facts.node is not None:
        return None
    attention = op.lstrip("_").startswith(ATTENTION)
    inputs = facts.origin.inputs
    masked = sum(fact.neginf for fact in inputs) or (attention and any(dtype_of(fact) == "bool" for fact in inputs))
    clean = not any(fact.nan or fact.posinf for fact in inputs)
    if not masked or not clean or not (op in SOFTMAX or attention):
        return None
    seen = f"a whole row of the input of {op.lstrip('_')} is -inf; its softmax is 0/0"
    inverted = facts.extra.get("upside_down") is True
    return Cause(
        slug="attention_fully_masked",
        evidence=(seen, _HIDES_THE_PAST) if inverted else (seen,),
        suggestions=(_INVERT, *_advice(facts)) if inverted else _advice(facts),
        strength=LIKELY if attention else PROVEN,
    )


def _gradient(facts: Facts) -> Cause | None:
    """A logsumexp of nothing but -inf is -inf, which may be meant; its gradient is NaN."""
    if not facts.outputs_nan or not all(fact.only_neginf for fact in facts.origin.inputs):
        return None
    op, low = facts.forward_op or "logsumexp", _LOW.get(dtype_of(facts.origin.inputs[0]), "-1e30")
    if op.startswith("logaddexp"):
        return _of_two(facts, op, low)
    fitted = fitting.argument(facts.origin, op, lambda text: f"{text}.clamp_min({low})") if op == "logsumexp" else None
    return Cause(
        slug="domain_error",  # of a recursion, perhaps: that it is a softmax of attention nothing shows
        evidence=(f"all that goes into {op} is -inf in places; the gradient there is -inf less -inf, and NaN",),
        suggestions=(
            Suggestion("Keep -inf out of it: behind a clamp the gradient there is 0.", fitted or f"x.clamp_min({low})"),
            _written(facts, low),
        ),
    )


def _written(facts: Facts, low: str) -> Suggestion:
    """Say to write a large finite number where -inf is: in the script's own line, where its text shows that."""
    found = fitting.parsed(facts.origin)
    names = [] if found is None else [one.id for one in ast.walk(found[1]) if isinstance(one, ast.Name)]
    meanings_of = [one for name in dict.fromkeys(names) if (one := facts.meaning(name)) is not None]
    text = f"Or write a large finite number, {low}, where -inf is written"
    one = next((one for one in meanings_of if one.inside and _ENDLESS.search(one.text)), None)
    if one is None:
        return Suggestion(f"{text}.")
    return Suggestion(f"{text}, in line {one.line}.", f"{one.name} = {_ENDLESS.sub(low, one.text)}")


def _of_two(facts: Facts, op: str, low: str) -> Cause:
    """Two that are both -inf, as what cannot be reached is in a recursion by hand: no row, and no attention."""
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    both = call.args if isinstance(call, ast.Call) and fitting.target(call, op) is not None else []
    code = bounding.guarded(facts.origin, [(one, f".clamp_min({low})") for one in both]) if len(both) == _TWO else None
    text = "Keep -inf out of both: behind a clamp the gradient there is 0."
    return Cause(
        slug="domain_error",
        evidence=(f"both that go into {op} are -inf in places; the gradient there is -inf less -inf, and NaN",),
        suggestions=(
            Suggestion(text, code or f"torch.{op}(a.clamp_min({low}), b.clamp_min({low}))"),
            Suggestion(f"Or begin with a large finite number, {low}, where -inf is written."),
        ),
    )


_LARGEST = ("max", "logsumexp")
_TWO = 2
_ENDLESS = re.compile(r"""-?float\(\s*['"]-?inf(?:inity)?['"]\s*\)|-(?:torch|math|np|numpy)\.inf\b""")


def _advice(facts: Facts) -> tuple[Suggestion, ...]:
    opened = _padding(facts)
    if opened is not None:
        return (opened,)
    fitted = fitting.filled(facts.origin) or _bounded(facts.origin)
    logarithm = None if fitted is not None else _scores(facts)
    left = _left_one(facts, *_names(facts))
    if fitted is None and logarithm is None:
        return (_alone(facts, left),)
    then = "a mean over all of its positions" if logarithm is None else "the same chance for each of its positions"
    text = f"Mask with the lowest finite number: such a row is then {then}, and no NaN."
    return (Suggestion(text, fitted or logarithm), left)


def _bounded(origin: Origin) -> str | None:
    """Return the user's line with what its softmax is of bounded, which has a name then where it is more than one."""
    found = fitting.parsed(origin)
    part = None if found is None else fitting.target(found[1], "softmax")
    if found is None or part is None:
        return None
    if naming.is_cheap(part):
        return fitting.line_of(origin, found[0], part, _finite)
    line = fitting.line_of(origin, found[0], part, lambda _: _finite("scores"))
    named = naming.before(origin, "scores", ast.unparse(part), line)
    return named or (fitting.line_of(origin, found[0], part, _finite) if meanings.is_same_again(part) else None)


def _scores(facts: Facts) -> str | None:
    """Return the user's line with the scores bounded that its logarithm of a softmax is of, where they have a name."""
    found = fitting.parsed(facts.origin)
    given = [] if found is None else [(op, fitting.target(found[1], op)) for op in _LOGARITHMS]
    op = next((op for op, part in given if isinstance(part, ast.Name | ast.Attribute | ast.Subscript)), None)
    return None if op is None else fitting.argument(facts.origin, op, _finite)


def _padding(facts: Facts) -> Suggestion | None:
    """Open the mask that the line gives to a layer of torch's as ``key_padding_mask``, which hides where it is True."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call):
        return None
    given = [one.value for one in found[1].keywords if (one.arg or "").endswith("key_padding_mask")]
    if len(given) != 1 or not isinstance(given[0], ast.Name | ast.Attribute):
        return None
    text = f"{_LEAVE_ONE}: where all of a row is padding, let it hide nothing there."
    code = fitting.line_of(
        facts.origin, found[0], given[0], lambda mask: f"{mask}.masked_fill({mask}.all(-1, keepdim=True), False)"
    )
    return Suggestion(text, code)


def _names(facts: Facts) -> tuple[str, ...]:
    found = fitting.parsed(facts.origin)
    return () if found is None else tuple(one.id for one in ast.walk(found[1]) if isinstance(one, ast.Name))


def _alone(facts: Facts, left: Suggestion) -> Suggestion:
    """Say it where no line can be mended; of which masks torch takes True to hide is known, and to keep as well."""
    mask = None if left.code is not None else _given(facts)
    text = f"{_LEAVE_ONE}, or mask with a large finite number."
    code = left.code if mask is None else mask.opened
    return Suggestion(text if code else f"{text[:-1]}: {_NO_ONE}.", code)


def _given(facts: Facts) -> masks.Mask | None:
    """Return the mask that a call of torch's own was given, by the meaning that it has there."""
    if (facts.origin.module_class or "").startswith(("MultiheadAttention", "Transformer")):
        return masks.Mask("key_padding_mask", keeps=False)
    found = fitting.parsed(facts.origin)
    boolean = any(dtype_of(fact) == "bool" for fact in facts.origin.inputs)
    call = None if found is None else found[1]
    if not boolean or not isinstance(call, ast.Call) or "scaled_dot_product" not in ast.unparse(call.func):
        return None
    given = [*call.args[3:4], *(one.value for one in call.keywords if one.arg == "attn_mask")]
    return masks.Mask(given[0].id, keeps=True) if len(given) == 1 and isinstance(given[0], ast.Name) else None


def _finite(scores: str) -> str:
    return f"{scores}.clamp_min(torch.finfo({scores}.dtype).min)"


def _two_masks(facts: Facts) -> Cause | None:
    """Two masks that hold the lowest finite number each, added: the sum is -inf, and a softmax of that is NaN."""
    inputs = facts.origin.inputs
    if len(inputs) != 2 or not all(_is_mask(fact) for fact in inputs):
        return None
    if not facts.finite_inputs or not any(fact.neginf for fact in facts.origin.outputs):
        return None
    lowest = words.number(inputs[0].min)
    return Cause(
        slug="attention_fully_masked",
        evidence=(f"both sides hold {lowest}, as masks do; their sum is -inf, and a softmax over such a row is NaN",),
        suggestions=(
            Suggestion(
                "Combine the masks before they become numbers, and fill once.",
                "scores.masked_fill(a | b, torch.finfo(scores.dtype).min)",
            ),
        ),
        strength=LIKELY,
        story=True,
    )


def _less_its_maximum(facts: Facts) -> Cause | None:
    """A softmax by hand: what a row of -inf alone has for its maximum is -inf, and -inf less -inf is NaN."""
    inputs = facts.origin.inputs
    if len(inputs) != 2 or not facts.outputs_nan or not all(fact.only_neginf for fact in inputs):
        return None
    found = fitting.parsed(facts.origin)
    if inputs[1].numel >= inputs[0].numel:
        return _between_blocks(facts, found) if inputs[1].numel == inputs[0].numel else None
    if inputs[0].neginf * inputs[1].numel < inputs[0].numel * inputs[1].neginf or _is_of_a_sum(facts, found):
        return None  # a row has more, or the text takes another term off a sum: it is no maximum
    if not (_is_of_rows(*inputs) or _says_largest(facts, found)):
        return None  # it is laid along the rows: a table, of which one entry is -inf
    return Cause(
        # A logarithm of a sum is no attention (a chain, a score of all paths), nor is one of many parts.
        slug="masked_infinity" if _is_logged(facts) or _is_of_parts(found, facts) else "attention_fully_masked",
        evidence=("a whole row is -inf, and so is what is taken off it; -inf less -inf is NaN",),
        suggestions=_shifted(facts, found),
    )


def _is_of_parts(found: tuple[str, ast.expr] | None, facts: Facts) -> bool:
    return found is not None and isinstance(found[1], ast.BinOp) and masks.is_given_back(facts, found[1].right)


def _is_of_a_sum(facts: Facts, found: tuple[str, ast.expr] | None) -> bool:
    """Whether ``a + b - c`` is written, and nothing tells that ``c`` is a maximum: a formula, and no softmax."""
    if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].left, ast.BinOp):
        return False
    return isinstance(found[1].left.op, ast.Add | ast.Sub) and not _says_largest(facts, found)


def _says_largest(facts: Facts, found: tuple[str, ast.expr] | None) -> bool:
    """Whether the text takes a maximum off, in the line or where the name that it has there is assigned."""
    if found is None or not isinstance(found[1], ast.BinOp):
        return False
    taken = quotients.looked_at(found[1].right)
    meaning = facts.meaning(taken.id) if isinstance(taken, ast.Name) else None
    text = f"{ast.unparse(taken)} {'' if meaning is None else meaning.text}"
    return any(word in text for word in _LARGEST)


def _is_of_rows(scores: TensorFact, taken: TensorFact) -> bool:
    """Whether what is taken off has one element where the first has many, as a maximum that keeps its dimension."""
    if len(scores.shape) != len(taken.shape):
        return not taken.shape
    return all(one in {1, many} for many, one in zip(scores.shape, taken.shape, strict=True))


def _shifted(facts: Facts, found: tuple[str, ast.expr] | None) -> tuple[Suggestion, ...]:
    """Say what to do before the maximum is taken: behind it the lowest finite number would be far above it."""
    scores = found[1].left if found is not None and isinstance(found[1], ast.BinOp) else None
    largest = quotients.looked_at(found[1].right) if found is not None and isinstance(found[1], ast.BinOp) else None
    of_sum = isinstance(scores, ast.BinOp)  # either term may hold the infinities
    name = fitting.bracketed(scores) if scores is not None and (of_sum or isinstance(scores, ast.Name)) else "scores"
    meaning = facts.meaning(largest.id) if isinstance(largest, ast.Name) else None
    where = "Before its maximum is taken" if isinstance(largest, ast.Name) else "Before this line"
    where = where if meaning is None else f"Before line {meaning.line}, which takes the maximum"
    logged = _is_logged(facts)
    if isinstance(largest, ast.Name) and masks.is_given_back(facts, largest):
        return (*masks.of_parts(facts, largest.id, _finite(largest.id)), _left_one(facts, name))
    if logged and not _is_of_one_batch(facts):
        return _in_recursion(facts, name, where)
    if logged:
        text = f"{where}, leave such rows out: the logarithm of a sum of nothing is -inf, and no number stands for it."
        return (Suggestion(text, _into(name, f"{name}[{name}.isfinite().any(-1)]")), _left_one(facts, name))
    both = ", and take the maximum and this difference of that" if of_sum else ""
    blocks = meaning is not None and masks.runs_over_blocks(meaning.text)
    text = f"{where}, put the lowest finite number for -inf{both}: {masks.THEN[blocks]}"
    return (Suggestion(text, _into(name, _finite(name))), masks.BLOCKS if blocks else _left_one(facts, name))


def _is_logged(facts: Facts) -> bool:
    return "log(" in "".join((facts.origin.source or "", *facts.uses))


def _is_of_one_batch(facts: Facts) -> bool:
    """Whether the rows are those of a table, along its last dimension, which can be left out.

    Along another dimension, or one that is a name for whatever a caller hands in, what comes next needs all of them.
    """
    scores, taken = facts.origin.inputs[0].shape, facts.origin.inputs[1].shape
    along = [place for place, (many, one) in enumerate(zip(scores, taken, strict=False)) if one != many]
    sums = [one for node in fitting.nodes_of(facts.origin.source or "") if (one := _along(node)) is not None]
    last = len(scores) != len(taken) or along in ([], [len(scores) - 1])
    return len(scores) <= _TWO and last and all(isinstance(one, ast.Constant | ast.UnaryOp) for one in sums)


def _along(node: ast.AST) -> ast.expr | None:
    """Return the d of ``x.sum(d)`` and ``torch.sum(x, dim=d)``."""
    summed = fitting.target(node, "sum") if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or summed is None:
        return None
    given = [
        *(one for one in node.args if one is not summed),
        *(one.value for one in node.keywords if one.arg == "dim"),
    ]
    return given[0] if given else None


def _into(name: str, code: str) -> str:
    """Return ``code`` as it is written into ``name``, alone where that is no name but a sum."""
    return f"{name} = {code}" if name.isidentifier() else code


def _in_recursion(facts: Facts, name: str, where: str) -> tuple[Suggestion, ...]:
    """Rows of rows cannot be left out: what nothing leads to, in a chain by hand, stays far below all others."""
    low = _LOW.get(dtype_of(facts.origin.inputs[0]), "-1e30")
    line = forms.logsumexp_by_hand(facts.origin, f".clamp_min({low})")
    if line is not None:
        text = "Let torch do it, and keep -inf out of it: behind a clamp the sum of nothing is far below all others."
        return Suggestion(text, line), _left_one(facts, name)
    text = f"{where}, keep -inf out of it: behind a clamp the sum of nothing is far below all others."
    return Suggestion(text, _into(name, f"{name}.clamp_min({low})")), _left_one(facts, name)


def _left_one(facts: Facts, *names: str) -> Suggestion:
    """Say how to leave one position unmasked, in the script's own mask where the text shows which way it is meant."""
    meanings = [one.text for name in names if (one := facts.meaning(name)) is not None]
    mask = next((laid for text in (facts.origin.source or "", *meanings) if (laid := masks.mask_in(text))), None)
    text = f"Or l{_LEAVE_ONE[1:]}"
    return Suggestion(f"{text}: {_NO_ONE}.") if mask is None else Suggestion(f"{text}.", mask.opened)


def _between_blocks(facts: Facts, found: tuple[str, ast.expr] | None) -> Cause | None:
    """A softmax in blocks: what a row summed so far is scaled by exp(old maximum - new one), both -inf at first."""
    whole = (facts.origin.source or "").replace(" ", "")
    if found is None or not isinstance(found[1], ast.BinOp) or f"exp({found[0].replace(' ', '')})" not in whole:
        return None
    right = found[1].right
    if not chosen.is_of_maximum(facts) or (chosen.is_picked(facts) and not isinstance(right, ast.Subscript)):
        return None  # log-probabilities of what was chosen, say: nothing tells of rows, nor of blocks
    # ``top[group]`` is of a maximum for each group: what is fetched is a copy, and written into would be the whole.
    fetched = isinstance(right, ast.Subscript) and isinstance(right.value, ast.Name | ast.Attribute)
    new = ast.unparse(right.value if isinstance(right, ast.Subscript) and fetched else right)
    rest = "of a group" if fetched else "of a row that no block has anything of"
    return Cause(
        slug="attention_fully_masked",
        evidence=(_OF_A_GROUP if fetched else _OF_A_BLOCK,),
        suggestions=(
            Suggestion("Before this line, put the lowest finite number for -inf.", f"{new} = {_finite(new)}"),
            masks.kept_sum(facts, rest),
            _left_one(facts, *_names(facts)) if fetched else masks.BLOCKS,
        ),
        strength=LIKELY,
    )


_OF_A_BLOCK = "a whole row was -inf so far, and is in this block: -inf less -inf is NaN"
_OF_A_GROUP = "all of a group is -inf, and so is the maximum that is taken off it: -inf less -inf is NaN"


def _is_mask(fact: TensorFact) -> bool:
    limit = LARGEST.get(dtype_of(fact))
    return limit is not None and fact.min is not None and fact.min <= -0.5 * limit and (fact.max or 0.0) <= 0.0

"""The infinity of a mask that a sum does not leave out, or that is picked of what is masked (reader side).

And the NaN that stands for what is missing, which no product with a mask leaves out.
"""

from __future__ import annotations

import ast
import posixpath

from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends.masked import chosen, missing
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="masked_infinity",
    what="A mask has put an infinity in places that nothing is to come of, and something does: a sum or a mean goes "
    "over them, a row is masked all over and its extreme is taken, or the class that a target names is one of them. Or "
    "NaN stands for what is missing, and a product with a mask of 0 and 1 is to leave it out: NaN times 0 is NaN.",
    looks=(
        "error[masked_infinity]: +Inf born on rank 0 at step 15 in the loss code",
        "what is picked here is -Inf, as a mask has it: the target, or the choice, is masked out",
    ),
    fix=(
        Suggestion(
            "Leave targets that are masked out of the loss, or keep the target's own class out of the mask.",
            "gone = logits.gather(1, target[:, None])[:, 0].isinf()\n"
            "loss = F.cross_entropy(logits, target.masked_fill(gone, -100))",
        ),
        Suggestion("Leave out of a sum what the mask leaves out.", "x.masked_fill(mask, 0).sum()"),
        Suggestion("Leave rows that are masked all over out of what follows."),
        Suggestion("Put a number in the place of NaN before the arithmetic.", "target = torch.where(mask, target, 0)"),
    ),
    pages=(
        "generated/torch.nn.functional.cross_entropy.html",
        "generated/torch.Tensor.masked_fill_.html",
    ),
)

_LEFT_OUT = -100  # as torch's losses have it, unless they are told otherwise
_PICKS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "gather", "index"})
_SUMS = frozenset({"sum", "mean", "dot"})
_ENDS = frozenset({"amax", "amin", "max", "min"})
_LOG_OF_SUM = "logsumexp"
_TWO = 2


def explain(facts: Facts) -> Cause | None:
    """Name the infinities of a mask that went into a sum, or were picked: what comes out is infinite then."""
    given, op = facts.origin.inputs, facts.op or ""
    if facts.extra.get("masked_nan") is True and len(given) == _TWO and op == "mul":
        return _of_missing(facts)
    if facts.source != "op" or facts.node is not None or op not in _PICKS | _SUMS | _ENDS | {_LOG_OF_SUM}:
        return _of_choice(facts) if op == "sub" and len(given) == _TWO else None
    masked = next((one for one in given if one.posinf or one.neginf), None)
    if masked is None or any(one.nan for one in given):
        return None
    what = "Inf" if masked.posinf and masked.neginf else "+Inf" if masked.posinf else "-Inf"
    if op in _ENDS | {_LOG_OF_SUM}:
        text = f"all that {op} is taken of is {what} in places: the mask leaves nothing there"
        return Cause("masked_infinity", (text, *written_at(facts, what)), (_of_nothing(facts),), LIKELY)
    if op in _PICKS:
        by = facts.extra.get("masked_by")
        mask = f"buffer {by}" if by else "a mask"
        text = f"what is picked here is {what}, as {mask} has it: the target, or the choice, is masked out"
        return Cause("masked_infinity", (text, *written_at(facts, what)), (_of_target(facts, op),), LIKELY)
    count = words.count(masked.posinf + masked.neginf, "value")
    text = f"{count} of {masked.numel:,} that go into {op} are {what}, as a mask has it"
    return Cause("masked_infinity", (text, *written_at(facts, what)), _advice(facts), LIKELY)


def _of_choice(facts: Facts) -> Cause | None:
    """Name the difference of two log-probabilities of what a mask forbids: a ratio of policies, say."""
    both = all(one.only_neginf for one in facts.origin.inputs) and facts.outputs_nan
    alike = both and facts.origin.inputs[0].numel == facts.origin.inputs[1].numel
    if not alike or facts.node is not None or not chosen.is_picked(facts) or chosen.is_of_maximum(facts):
        return None
    slug = "masked_infinity" if facts.extra.get("masked_at") else "domain_error"
    return Cause(slug, (chosen.said(facts), *written_at(facts, "-Inf")), chosen.advice(facts), PROVEN)


def _of_missing(facts: Facts) -> Cause:
    """Name the product by which a mask is to leave out the NaN that stands for what is missing."""
    bad = next((one for one in facts.origin.inputs if one.nan), facts.origin.inputs[0])
    text = f"0 times NaN is NaN: {bad.nan:,} NaN where the mask is 0"
    return Cause("masked_infinity", (text, *written_at(facts, "NaN")), (missing.mend(facts),), LIKELY)


def written_at(facts: Facts, what: str) -> tuple[str, ...]:
    """Tell where the infinity was written."""
    at = facts.extra.get("masked_at")
    if not isinstance(at, list) or len(at) != 2:
        return ()
    return (f"The {what} was written at {posixpath.basename(str(at[0]))}:{at[1]}.",)


def _of_nothing(facts: Facts) -> Suggestion:
    """Where nothing is left the extreme is the mask's own number, which is to go no further; so a sum's logarithm."""
    found = (facts.origin.source or "").strip()
    made = parsing.statement(found)
    named = isinstance(made, ast.Assign) and len(made.targets) == 1 and isinstance(made.targets[0], ast.Name)
    what = _LOG_OF_SUM if facts.op == _LOG_OF_SUM else "extreme"
    if facts.op == _LOG_OF_SUM and not any(one in str(facts.extra.get("masked_text")) for one in _LAYS):
        return _BEFORE_THE_SUM
    name = made.targets[0].id if named else what  # type: ignore[union-attr]
    line = f"{found}\n" if named else ""
    if _keeps_its_rows(facts, name):
        text = f"Behind this line, put what stands for the {what} of nothing in its place, 0 perhaps; of a mean behind "
        text += "it leave such rows out by one mask for all that goes into it, and divide by no less than one."
        return Suggestion(text, f"{line}{name} = {name}.masked_fill({name}.isinf(), 0.0)")
    text = f"Leave such rows out of what follows: there is nothing to take the {what} of."
    return Suggestion(text, f"{line}{name} = {name}[{name}.isfinite()]")


# What keeps the gradient off where it lays an infinity.
_LAYS = ("masked_fill", "where", "index_fill")
_BEFORE_THE_SUM = Suggestion(
    "Leave rows that are masked all over out before this line: a number in the place of its result does not help, for "
    "its gradient is NaN there.",
    "left = scores.isfinite().any(-1)\nscores = scores[left]",
)


def _keeps_its_rows(facts: Facts, name: str) -> bool:
    """Whether rows cannot be left out: of a batch's columns, where none would be left, or where others go with them.

    What meets it in a later line has rows for all of them.
    """
    outputs = facts.origin.outputs
    if any(len(one.shape) > 1 or one.posinf + one.neginf == one.numel for one in outputs) or not facts.uses:
        return True
    nodes = [node for use in facts.uses for node in fitting.nodes_of(use)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    read = (one for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    return any(one.id != name and id(one) not in called and not fitting.is_module(one) for one in read)


def _of_target(facts: Facts, op: str) -> Suggestion:
    if op in {"gather", "index"}:
        return Suggestion("Look at how it was chosen: with the same mask, or with another one, or before it changed?")
    text = "Leave such targets out of the loss, or keep the target's own class out of the mask."
    flat = len(facts.origin.inputs) > 1 and len(facts.origin.inputs[1].shape) == 1
    return Suggestion(text, _without_masked(facts.origin) if flat else None)


def _without_masked(origin: Origin) -> str | None:
    """Return the user's loss of one target a row without those that are masked, which one line before it finds."""
    found = fitting.parsed(origin)
    call = found[1] if found is not None and isinstance(found[1], ast.Call) else None
    if call is None or len(call.args) < 2 or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    ignored = next((one.value for one in call.keywords if one.arg == "ignore_index"), None)
    function = ast.unparse(call.func)
    own = function.rpartition(".")[2] in {"cross_entropy", "nll_loss"}
    other = str(_LEFT_OUT) if own else f'getattr({function}, "ignore_index", {_LEFT_OUT})'
    left_out = other if ignored is None else ast.unparse(ignored)
    scores, target = (_bracketed(one) for one in call.args[:2])
    call.args[1] = ast.Name(f"{target}.masked_fill(gone, {left_out})")
    line = fitting.whole(origin, ast.unparse(call))
    return None if line is None else f"gone = {scores}.gather(1, {target}.clamp(min=0)[:, None])[:, 0].isinf()\n{line}"


def _bracketed(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def _advice(facts: Facts) -> tuple[Suggestion, ...]:
    plain = _without_smoothing(facts)
    if plain is not None:
        text = (
            "Label smoothing gives every class a share, those at -inf as well: leave it out where classes are masked."
        )
        return Suggestion(text, plain), _smoothed(facts)
    left_out = fitting.argument(facts.origin, facts.op or "", lambda text: f"{text}.masked_fill({text}.isinf(), 0)")
    text = f"Leave out of the {facts.op} what the mask leaves out."
    return (Suggestion(text, left_out or "x.masked_fill(mask, 0).sum()"),)


def _smoothed(facts: Facts) -> Suggestion:
    """Return the loss with shares for the classes that are left, of what the underlined call is given first."""
    found = fitting.parsed(facts.origin)
    args = found[1].args if found is not None and isinstance(found[1], ast.Call) else []
    name = ast.unparse(args[0]) if args and isinstance(args[0], ast.Name | ast.Attribute) else "logits"
    return Suggestion(
        "Or give the share to the classes that are left alone.",
        f"logp = {name}.log_softmax(-1); left = {name}.isfinite()\n"
        "smooth = -logp.masked_fill(~left, 0).sum(-1) / left.sum(-1)",
    )


def _without_smoothing(facts: Facts) -> str | None:
    """Return the user's line with its ``cross_entropy(..., label_smoothing=a)`` without the last."""
    found = fitting.parsed(facts.origin)
    if found is None or not isinstance(found[1], ast.Call):
        return None
    if not any(word.arg == "label_smoothing" for word in found[1].keywords):
        return None
    found[1].keywords = [word for word in found[1].keywords if word.arg != "label_smoothing"]
    return fitting.whole(facts.origin, ast.unparse(found[1]))

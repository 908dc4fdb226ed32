"""The mean of nothing, and the spread of one value (reader side)."""

from __future__ import annotations

import ast
from collections.abc import Collection

from nandiag.analysis.causes.facts import Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.counts import means
from nandiag.analysis.causes.mends.divisors import spreads
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="empty_reduction",
    what="A mean was taken of nothing, or a spread of too few values: both divide by zero. Masks that select "
    "nothing, targets that are all ignored, and a last batch of one do so.",
    looks=(
        "error[empty_reduction]: NaN born on rank 0 at step 23 in the loss code",
        "std of 1 value divides by 1 - 1: 0/0 is NaN",
    ),
    fix=(
        Suggestion(
            "Divide a sum by a count that is at least 1.",
            "x.sum() / max(x.numel(), 1)",
        ),
        Suggestion(
            "A spread of one value: divide by the count itself.",
            "x.std(unbiased=False)",
        ),
        Suggestion(
            "Leave out what is empty: a last batch of one, samples without targets.",
            "DataLoader(..., drop_last=True)",
        ),
    ),
    pages=(
        "generated/torch.nn.functional.cross_entropy.html",
        "generated/torch.std.html",
        "data.html",
    ),
)

SPREADS = frozenset({"var", "std", "var_mean", "std_mean"})
TARGETS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d", "cross_entropy_loss"})


def explain(facts: Facts) -> Cause | None:
    """Name a mean over no elements, a spread of too few, or a loss all of whose targets are left out."""
    if not facts.finite_inputs or not facts.outputs_nan or facts.node is not None:
        return None
    if _is_mean_of_missing(facts):
        return _all_missing(facts)
    if _divides_by_no_target(facts):
        return _no_target(facts)
    if facts.op in TARGETS and facts.origin.inputs[0].numel:
        return _no_target(facts)
    if facts.op in SPREADS and facts.origin.inputs[0].numel:
        return _too_few(facts)
    return None if facts.origin.inputs[0].numel else _nothing(facts)


def divides_by_nothing(facts: Facts) -> bool:
    """Whether a reduction of torch's divides a sum by its count of 0."""
    return _divides_by_no_target(facts) or _is_mean_of_missing(facts)


def _is_mean_of_missing(facts: Facts) -> bool:
    """Whether it is ``nanmean``, which divides a sum by how many values are not NaN."""
    found = fitting.parsed(facts.origin) if facts.op == "div" else None
    return found is not None and isinstance(found[1], ast.Call) and _called(found[1]) == "nanmean"


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _all_missing(facts: Facts) -> Cause:
    counts, (text, _) = facts.origin.inputs[-1], fitting.parsed(facts.origin) or ("", None)
    where = (
        "all values are NaN" if counts.numel == 1 else f"of {counts.zeros} in {counts.numel} means all values are NaN"
    )
    code = fitting.whole(facts.origin, f"torch.nan_to_num({text}, nan=0.0)")
    return Cause(
        slug="empty_reduction",
        evidence=(f"{where}, and nanmean divides by how many are not: 0/0 is NaN",),
        suggestions=(Suggestion("Put a number in the place of the mean of nothing.", code),),
    )


def _divides_by_no_target(facts: Facts) -> bool:
    """Whether a loss that torch makes of smaller ops (``loss_parallel``) divides its sum by a count of 0."""
    found, inputs = fitting.parsed(facts.origin), facts.origin.inputs
    if facts.op != "div" or found is None or not isinstance(found[1], ast.Call):
        return False
    ones = bool(inputs) and all(one.numel == one.zeros == 1 for one in inputs)
    return ones and _called(found[1]) in {"cross_entropy", "nll_loss"}


_LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"})
_ALIKE = Suggestion(
    "Or let no rank's share of a batch be empty: leave out a last batch that is too short for all ranks (drop_last), "
    "on all of them alike; a rank that passes over its step alone holds up the others."
)


def _nothing(facts: Facts) -> Cause:
    called = (word for word in _CALLED if word in (facts.origin.source or ""))
    # Torch has the forward of a loss under a name that no script calls.
    name = next(called, facts.op) if (facts.op or "").startswith("nll_loss") else facts.op
    return Cause(
        slug="empty_reduction",
        evidence=(f"the input of {name} has no elements; the {name} of nothing is NaN",),
        suggestions=_of_nothing(facts),
    )


_CALLED = ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss")


def _taken_of_more(facts: Facts) -> Suggestion:
    if facts.op in SPREADS:
        return spreads.of_nothing(facts, divides=_divides(facts))
    text = "Leave out what is empty, or divide a sum by a count that is at least 1."
    code = means.counted(facts.origin) or means.without(facts.origin)
    return Suggestion(text, code or (None if facts.origin.source else "x.sum() / max(x.numel(), 1)"))


def _of_nothing(facts: Facts) -> tuple[Suggestion, ...]:
    """Where the gradients are exchanged, a rank that leaves out a step by itself holds up the others."""
    mend = _left(facts) or _taken_of_more(facts)
    shared = facts.world > 1 and facts.op in _LOSSES and (facts.origin.module_class or "Loss").endswith("Loss")
    return (mend, _ALIKE) if shared else (mend,)


def _left(facts: Facts) -> Suggestion | None:
    """Leave a function that hands nothing back before it takes in nothing: a mean of 0 would be one more value."""
    found = fitting.parsed(facts.origin)
    reduced = None if found is None or facts.op not in {"mean", *SPREADS} else fitting.target(found[1], facts.op or "")
    if not isinstance(reduced, ast.Name | ast.Attribute) or facts.extra.get("of_weights") is True:
        return None
    name = ast.unparse(reduced)
    code = facts.left_if(f"not {name}.numel()")
    if code is None or not code.endswith("return"):
        return None
    text = f"Where {name} is empty there is nothing to take in: leave before this line, unless ranks exchange something"
    return Suggestion(f"{text} behind it.", code)


def _too_few(facts: Facts) -> Cause | None:
    """The reduction divides by its count less the correction, which is 1 where nothing else is asked for."""
    given, out = facts.origin.inputs[0].numel, next((fact.numel for fact in facts.origin.outputs if fact.bad), 0)
    many = given // out if out else 0
    correction = facts.number("correction")
    less = 1 if correction is None else correction
    if many > less:
        return None
    value = words.count(many, "value")
    return Cause(
        slug="empty_reduction",
        evidence=(f"{facts.op} of {value} divides by {many} - {words.number(less)}: 0/0 is NaN",),
        suggestions=_short_left_out(facts, many) or (_by_the_count(facts, many), _SMALL),
    )


_SMALL = Suggestion(
    "Or leave groups out that are too small, such as a last batch of one (a DataLoader's: drop_last=True)."
)


def _short_left_out(facts: Facts, many: int) -> tuple[Suggestion, ...]:
    """Say first to leave a batch out that is smaller than others, where the spread is that of its samples."""
    short, shape = facts.extra.get("short_batch"), facts.origin.inputs[0].shape
    if not isinstance(short, list) or len(short) != len(("own", "others")) or not shape:
        return ()
    own, others = short
    if not own == many == shape[0]:
        return ()
    text = f"It is of a batch of {words.count(own, 'sample')}, where others have {others}, as the last of a DataLoader "
    keep = _by_the_count(facts, many)
    return (
        Suggestion(f"{text}may be: leave that out.", "DataLoader(..., drop_last=True)"),
        Suggestion(f"Or {keep.text[0].lower()}{keep.text[1:]}", keep.code),
    )


def _by_the_count(facts: Facts, many: int) -> Suggestion:
    """Say how to take the spread of a group of one, which is 0: what is divided by it is 0/0 again without an eps."""
    eps = "1e-4" if dtype_of(facts.origin.inputs[0]) == "float16" else "1e-8"
    divides = many == 1 and _divides(facts)
    text = "Divide by the count itself where a group can hold one element"
    fitted = fitting.added(facts.origin, facts.op or "", "unbiased=False", eps if divides else "")
    code = fitted or f"x.{facts.op}(unbiased=False)"
    return Suggestion(f"{text}, and keep its spread, 0, out of the divisor." if divides else f"{text}.", code)


def _divides(facts: Facts) -> bool:
    """Whether the spread, or its root, is all that stands below a division, in its line or under its name behind it."""
    found, source = fitting.parsed(facts.origin), (facts.origin.source or "").strip()
    if found is None:
        return False
    given = ast.unparse(found[1])
    name = source.partition("=")[0].strip() if source.partition("=")[2].strip() == found[0] else None
    return _is_below(source, {given}) or any(_is_below(use, {given, name}) for use in facts.uses)


def _is_below(line: str, bare: Collection[str | None]) -> bool:
    nodes = fitting.nodes_of(line)
    below = [one.right for one in nodes if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    below += [one.value for one in nodes if isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Div)]
    return any(ast.unparse(_unrooted(one)) in bare for one in below)


def _unrooted(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return node.left
    return fitting.target(node, "sqrt") or node


_DIVIDE = "Divide a sum by a count that is at least 1."
_GUARD = "Where all targets are left out, take 0 for the loss, with a gradient of 0."


def _no_target(facts: Facts) -> Cause:
    ignored = facts.number("arg4")
    index = "-100" if ignored is None else words.number(ignored)
    code = fitting.summed(facts.origin, index)
    guarded = means.unless_ignored(facts.origin, index) if code is None else None
    code = code or guarded or f"F.cross_entropy(z, y, reduction='sum') / (y != {index}).sum().clamp_min(1)"
    what = "the ignore_index" if ignored is None else f"{words.number(ignored)}, the ignore_index"
    return Cause(
        slug="empty_reduction",
        evidence=(f"all targets are {what}, or weigh 0; the mean over none of them is 0/0",),
        suggestions=(
            Suggestion(_DIVIDE if guarded is None else _GUARD, code),
            Suggestion("Or leave samples out whose targets are all ignored."),
        ),
    )

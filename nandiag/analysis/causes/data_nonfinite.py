"""A batch that was bad before the model saw it (reader side)."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TypeVar

from nandiag.analysis.causes import evaluation_in_training
from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends import numpys
from nandiag.analysis.causes.mends.digits import arrays
from nandiag.analysis.causes.mends.script import fitting, naming
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="data_nonfinite",
    what="A batch held NaN or Inf before the model saw it. The report names the input, and where the DataLoader "
    "tells it, the index of the sample in its dataset.",
    looks=(
        "error[data_nonfinite]: NaN in the data of rank 0 at step 21: input history",
        "sample 11 of the batch is bad: Windows[341].",
    ),
    fix=(
        Suggestion(
            "Look at the sample that the report names, and drop or repair such samples while loading.",
            "assert torch.isfinite(x).all()",
        ),
        Suggestion(
            "In tables: a missing value is NaN. Fill it, and give the model a flag that it was missing.",
            "x = torch.nan_to_num(x, nan=0.0)",
        ),
        Suggestion(
            "In transforms of your own: a division by the spread of a constant signal, a logarithm of 0, a resize "
            "to nothing.",
        ),
    ),
    pages=(
        "data.html",
        "generated/torch.isfinite.html",
        "generated/torch.nan_to_num.html",
    ),
)

Node = TypeVar("Node", bound=ast.AST)
_ASKED = frozenset({"__getitem__", "__getitems__"})  # not the code of a collate_fn, which is called with the samples
_CHECK = "Check the data right after this line, before training, and drop or repair such samples"
_LIVE = Suggestion(
    "For its line, where a torch op makes it in the main thread: have every op watched as it runs. What is read so "
    "from a file, or by float(), is made by none: check it as it is read.",
    "nandiag run --level op",
)
_PATHS = (ast.Name, ast.Attribute, ast.Subscript)
_WEIGHTS = frozenset({"weight", "pos_weight"})
_BROUGHT = {
    "brought": "It came with {}, and was bad when torch took it there: what made it was not seen.",
    "made_once": "It was {}, as this batch was made of it.",
}
_TOGETHER = "It was made as the samples of the batch were put together, of several of them or all."
_BETWEEN = "That makes an infinity: what came into torch is NaN, and so a line behind this one made NaN of it."
_DROP_THERE = Suggestion("Or look at what goes into it there, and mend that where it is written.")
_DROP = Suggestion("Or drop or repair, while loading, what breaks it.")


def explain(facts: Facts) -> Cause | None:
    """Name the input that came from outside with non-finite values in it, and its sample where that is known.

    Where an evaluation in the wrong mode brought it into a buffer, that is to be mended first: what is evaluated may
    have it. What the script writes as NaN for what is missing is meant, and need not be found at all.
    """
    cause, way = _named(facts), evaluation_in_training.way(facts)
    if cause is None or way is None:
        return cause
    told = replace(cause, evidence=(*cause.evidence, *way.evidence))
    if not way.suggestions:
        return told
    meant = facts.origin.op is not None and words.laid(facts.origin.op, facts.origin.inputs, facts.extra) == "NaN"
    rest = () if meant else cause.suggestions
    return replace(told, slug=evaluation_in_training.EXPLAIN.slug, suggestions=(*way.suggestions, *rest))


def _named(facts: Facts) -> Cause | None:
    if "birth" in facts.extra:
        return _born(facts) if facts.weight is None and facts.origin.phase == "data" else None
    if facts.extra.get("heard") is True:
        return _heard(facts, str(facts.extra.get("numpy")))
    if facts.source == "op" and words.op(facts.origin.op or "") == "lift_fresh":
        return _listed(facts)
    in_dataset = facts.source == "op" and facts.origin.phase == "data" and "dataset" in facts.extra
    if not (facts.source == "input" or in_dataset) or "written_in_place" in facts.extra:
        return None
    sample = _sample(facts, in_dataset=in_dataset)
    return _in_dataset(facts, sample) if in_dataset else _given(facts, sample)


def _born(facts: Facts) -> Cause:
    """Tell data that the script made bad, or read so, before its first step; its op is the mechanism."""
    told: tuple[str, ...] = ()
    sample = facts.extra.get("came_as")
    if "key" in facts.extra:
        told = (
            f"It was bad already in {facts.extra['key']} of {facts.extra.get('file') or 'what was read from a file'}.",
        )
    weights = _weights(facts)
    if weights is not None:
        return Cause("data_nonfinite", (), (_of_classes(weights),), LIKELY - 1, story=True)
    text = f"Look at what this line makes, and at {sample}: drop or repair this sample and others like it."
    mend = _check(facts) if sample is None else Suggestion(text)
    return Cause("data_nonfinite", told, (mend,), LIKELY - 1, story=True, general=sample is None)


def _check(facts: Facts) -> Suggestion:
    """Return the check in the name that the line has for what it makes."""
    name = naming.given(facts.origin)
    if name is None:
        return Suggestion(f"{_CHECK}: torch.isfinite tells them.")
    return Suggestion(f"{_CHECK}.", f"assert torch.isfinite({name}).all()")


def _listed(facts: Facts) -> Cause | None:
    """Tell Python's numbers that were bad when torch made a tensor of them: read so, as a rule.

    One by itself may be meant (a bound, a mask); what a dataset hands out as a sample is not.
    """
    least = 0 if "dataset" in facts.extra else 1
    bad = next((fact for fact in facts.origin.outputs if fact.bad and fact.numel > least), None)
    if bad is None:
        return None
    where = f"; the first bad one is at {list(bad.first_bad)}" if bad.first_bad else ""
    what = "Python's numbers" if bad.numel > 1 else "a number of Python's"
    what = "an array of numpy's" if "from_numpy(" in (facts.origin.source or "") else what
    sample = _sample(facts, in_dataset=True)
    told = (f"torch took it as it is from {what}{where}.", *((sample,) if sample else ()))
    mend = f"Look at where {_read_at(facts, bad)}, and drop or repair such rows there"
    given = _nodes(facts.origin.source or "", ast.Assign)
    names = [one.id for node in given for one in node.targets if isinstance(one, ast.Name)]
    if len(names) != 1 or bad.numel == 1:
        return Cause("data_nonfinite", told, (Suggestion(f"{mend}."),), LIKELY, story=True)
    mend = f"{mend}, or put a number that stands for a missing one in their place, behind this line."
    return Cause("data_nonfinite", told, (Suggestion(mend, _with_numbers(names[0], bad)),), LIKELY, story=True)


def _read_at(facts: Facts, bad: TensorFact) -> str:
    """Say where the numbers come from: the lines that set the one name that the expression is made of.

    Of a part of an attribute (``row = self.rows[i]``) those that set all of it: nothing is read where it is taken.
    """
    found = fitting.parsed(facts.origin)
    names = {one.id for one in ast.walk(found[1]) if isinstance(one, ast.Name)} if found is not None else set()
    lines = [line for name in names for line in _whole(facts, name) or facts.written(name)]
    at = f", in {words.lines(lines)}" if lines else ""
    return f"{'these numbers are' if bad.numel > 1 else 'this number is'} read or computed{at}"


def _whole(facts: Facts, name: str) -> tuple[int, ...]:
    known = facts.meaning(name)
    return facts.written(known.text.partition("[")[0]) if known is not None and "." in known.text else ()


def _weights(facts: Facts) -> str | None:
    """Return what the line assigns, where the script hands it to a loss as the weights of its classes."""
    names = [node.id for node in _nodes(facts.origin.source or "", ast.Name) if isinstance(node.ctx, ast.Store)]
    words = [word for use in facts.uses for word in _nodes(use, ast.keyword) if word.arg in _WEIGHTS]
    given = {word.value.id for word in words if isinstance(word.value, ast.Name)}
    partly = any(fact.bad < fact.numel for fact in facts.origin.outputs)
    return names[0] if partly and len(names) == 1 and names[0] in given else None


def _nodes(line: str, kind: type[Node]) -> list[Node]:
    return [node for node in fitting.nodes_of(line) if isinstance(node, kind)]


def _of_classes(name: str) -> Suggestion:
    text = f"{name} weighs classes in a loss: one that has no sample, as a rule, is to weigh nothing, behind this line."
    return Suggestion(text, f"{name}[~{name}.isfinite()] = 0")


def _in_dataset(facts: Facts, sample: str | None) -> Cause:
    """The op in the dataset's own code is the mechanism; the sample is what to look at first."""
    told, mend = (sample,) if sample else (), _repair(facts)
    said = facts.extra.get("numpy")
    wraps = arrays.wrapped(facts) if isinstance(said, str) else None
    if wraps is not None:
        return Cause("data_nonfinite", (f"numpy says: {said}", wraps[0], *told), (wraps[1],), LIKELY, story=True)
    if isinstance(said, str):
        own = numpys.guard(facts, said)
        if _of_all(facts):
            return Cause("data_nonfinite", (f"numpy says: {said}", *told), (own,), LIKELY, story=True)
        once = facts.extra.get("made_once") is True
        mends = (own, _DROP) if once else (own, _or(mend)) if own.code else (mend, own)
        return Cause("data_nonfinite", (f"numpy says: {said}", *told), mends, LIKELY, story=True)
    # What mends the line stands before it where that is known: it is pasted, and this is a search.
    return Cause("data_nonfinite", told, (mend,), LIKELY - 1, story=True)


def _or(mend: Suggestion) -> Suggestion:
    return replace(mend, text=f"Or {mend.text[:1].lower()}{mend.text[1:]}")


def _heard(facts: Facts, said: str) -> Cause:
    """Tell what numpy said where bad data, or a number that is no datum, may have been made."""
    if facts.extra.get("number") is not True:
        sample = _sample(facts, in_dataset=False)
        bad = [fact for fact in (*facts.origin.outputs, *facts.origin.inputs) if fact.bad]
        unlike = words.numpy_kind(said) not in {"NaN", None} and bool(bad) and words.by_numpy(facts.extra, bad) is None
        told = (f"numpy says: {said}", *([_BETWEEN] if unlike else []), *([] if sample is None else [sample]))
        slug = _slug(said) if numpys.is_of_nothing(said) else "data_nonfinite"
        drop = _DROP if "dataset" in facts.extra else _DROP_THERE
        return Cause(slug, told, (numpys.guard(facts, said), drop), LIKELY, story=True)
    return Cause(_slug(said), (f"numpy says: {said}",), (numpys.guard(facts, said),), LIKELY)


def _slug(said: str) -> str:
    """Return the cause that numpy's words tell of (``invalid value encountered in scalar divide``)."""
    if numpys.is_of_nothing(said):
        return "empty_reduction"
    kind, _, op = said.partition(" encountered in ")
    if kind.startswith("overflow"):
        return "overflow"
    if "log" in op:
        return "log_of_zero" if kind.startswith("divide") else "domain_error"
    return "division_by_zero" if "divide" in op or kind.startswith("divide") else "domain_error"


def _repair(facts: Facts) -> Suggestion:
    index = facts.extra.get("dataset_index")
    named = "the sample that came in here" if index is None else f"{facts.extra['dataset']}[{index}]"
    return Suggestion(f"Look at {named}: drop or repair this sample and others like it, before this line sees them.")


def _given(facts: Facts, sample: str | None) -> Cause:
    seen = facts.extra.get("complete", True) is not False
    what = (
        f"{'these samples' if 'bad_samples' in facts.extra else 'this sample'} in the dataset, and what the collate_fn "
        "makes of it;"
        if sample
        else "where this input comes from,"
    )
    then = "" if sample else "and "
    known = facts.extra.get("dataset_index") is not None or "came_in" in facts.extra
    name = _own_name(facts)
    return Cause(
        slug="data_nonfinite",
        evidence=(*([sample] if sample else []), _where(complete=seen)),
        suggestions=(
            Suggestion(
                f"Check {what} {then}drop or repair such samples while loading.",
                f"assert torch.isfinite({name or 'x'}).all()" if name or not _names_x(facts) else None,
            ),
            *([] if name is None else [_filled(facts, name)]),
            *([] if known else [_LIVE]),
        ),
        strength=PROVEN if seen else LIKELY,
        story=True,
    )


def _own_name(facts: Facts) -> str | None:
    """Return what the script calls the bad input: its own name where it stands in the line, else what is handed in."""
    found = fitting.parsed(facts.origin)
    call = None if found is None else found[1]
    bad = next((fact.name for fact in facts.origin.inputs if fact.bad and fact.name), None)
    if bad is not None and any(node.id == bad for node in _nodes(facts.origin.source or "", ast.Name)):
        return bad
    given = _operands(call)
    plain = [one for one in given if isinstance(one, _PATHS) and not _is_made(facts, one)]
    return _as_written(facts, plain[0]) if len(plain) == 1 else None


def _operands(node: ast.expr | None) -> list[ast.expr]:
    """Return what an operation is given: of several the bad input of the step is none that was computed."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return list(node.args) if isinstance(node, ast.Call) and not node.keywords else []


def _is_made(facts: Facts, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and facts.meaning(node.id) is not None


def _as_written(facts: Facts, node: ast.expr) -> str:
    """Return a part of the line as it stands there: the parser has quotes of its own."""
    found = fitting.parsed(facts.origin)
    text = "" if found is None else found[0][node.col_offset : node.end_col_offset]
    return text or ast.unparse(node)


def _names_x(facts: Facts) -> bool:
    """Whether the line has an ``x`` of its own, which is something else then."""
    return any(node.id == "x" for node in _nodes(facts.origin.source or "", ast.Name))


def _filled(facts: Facts, name: str) -> Suggestion:
    """Return the line that puts a number in the place of missing ones, before the one that is underlined."""
    text = "Or, where values may be missing, put a number that stands for them in their place, before this line."
    return Suggestion(text, _with_numbers(name, *facts.origin.inputs))


def _with_numbers(name: str, *bad: TensorFact) -> str:
    others = ", posinf=0.0, neginf=0.0" if any(fact.posinf or fact.neginf for fact in bad) else ""
    return f"{name} = torch.nan_to_num({name}, nan=0.0{others})"


def _where(*, complete: bool) -> str:
    if complete:
        return "The values were bad before any module of the model saw them."
    return "The values were bad when the model was called; the script's own code before that was not looked at."


def _sample(facts: Facts, *, in_dataset: bool) -> str | None:
    dataset, index = facts.extra.get("dataset"), facts.extra.get("dataset_index")
    if dataset is None:
        return None
    source = f"{dataset}[{index}]" if index is not None else str(dataset)
    told = next((text for key, text in _BROUGHT.items() if facts.extra.get(key) is True), None)
    if told is not None:
        return told.format(source)
    if in_dataset and _of_all(facts):
        return _TOGETHER
    if in_dataset:
        asked = facts.origin.function in _ASKED
        made = "The dataset made it when it was asked for the sample again:" if asked else ""
        return f"{made or 'It was made when the batch was fetched again, from'} {source}."
    if _all_rows(facts):
        return f"all {facts.extra['bad_rows']} samples of the batch are bad, {source} the first of them."
    return _several(facts, dataset) or _one(facts, source, known=index is not None)


def _one(facts: Facts, source: str, *, known: bool) -> str:
    first = next((fact.first_bad for fact in facts.origin.inputs if fact.bad and fact.first_bad), None)
    position = f"sample {first[0]} of the batch" if first else "a sample of the batch"
    return f"{position} is bad: " + (f"{source}." if known else f"it came from {source} or its collate_fn.")


def _several(facts: Facts, dataset: object) -> str | None:
    """Name each of a few bad samples of the batch."""
    found = facts.extra.get("bad_samples")
    if not isinstance(found, list) or len(found) < 2:
        return None
    *places, last = [str(place) for place, _ in found]
    *items, end = [f"{dataset}[{index}]" for _, index in found]
    return f"samples {', '.join(places)} and {last} of the batch are bad: {', '.join(items)} and {end}."


def _of_all(facts: Facts) -> bool:
    """Whether it was made where a batch is put together, and is bad in each row: no one sample is to blame."""
    return facts.extra.get("together") is True and _all_rows(facts)


def _all_rows(facts: Facts) -> bool:
    """Whether no sample of a batch of several is good: one column is bad, as a rule, or how the dataset was made."""
    bad = next((fact for fact in (*facts.origin.inputs, *facts.origin.outputs) if fact.bad and fact.shape), None)
    return bad is not None and 1 < bad.shape[0] == facts.number("bad_rows")

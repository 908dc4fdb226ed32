"""What each early warning says, by its slug: a phrase with the numbers, and what they mean (launcher and reader)."""

from __future__ import annotations

import math
from collections.abc import Callable

from nandiag.analysis.early import drawn, refused
from nandiag.analysis.report import Suggestion
from nandiag.events import Warned, words

# What the findings on losses that were left out tell at the end, with their count.
ON_THE_WAY = "losses_passed_over"
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def told(warned: Warned) -> str:
    """Return what a warning says, without a full stop; of a kind not known only its slug."""
    text = TEXTS.get(warned.slug)
    return warned.slug.replace("_", " ") if text is None else text(warned)


MENDS: dict[str, Callable[[Warned], tuple[Suggestion, ...]]] = {
    drawn.SLUG: drawn.mends,
    refused.MATRIX: refused.mends_matrix,
    refused.ARGUMENT: refused.mends_argument,
}


def mends(warned: Warned) -> tuple[Suggestion, ...]:
    """Return what to do about what an error was about that ended a rank, and nothing for other warnings."""
    found = MENDS.get(warned.slug)
    return () if found is None else found(warned)


def _value(warned: Warned, name: str) -> float | None:
    value = warned.facts.get(name)
    if isinstance(value, str):
        return _WORDS.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number(warned: Warned, name: str) -> str:
    return words.number(_value(warned, name))


def _times(warned: Warned, name: str, other: str) -> str:
    """Return ``12 times``, how many times the number ``other`` the number ``name`` is."""
    value, base = _value(warned, name), _value(warned, other)
    return f"{words.number(float(f'{value / base:.2g}'))} times" if value and base else "far above"


def _of(warned: Warned) -> str:
    return warned.name or "the batch"


def _norm_spike(warned: Warned) -> str:
    far = f"{_times(warned, 'norm', 'largest')} the largest of the last {_number(warned, 'steps')} steps"
    return f"the gradient norm is {_number(warned, 'norm')}, {far} (median {_number(warned, 'median')})"


def _norm_growth(warned: Warned) -> str:
    norms = f"from {_number(warned, 'norm_before')} to {_number(warned, 'norm')}"
    losses = f"from {_number(warned, 'loss_before')} to {_number(warned, 'loss')}"
    return f"in {_number(warned, 'steps')} steps in a row the gradient norm grew {norms} and the loss {losses}"


def _loss_spike(warned: Warned) -> str:
    usual = f"at most {_number(warned, 'largest')} in the last {_number(warned, 'steps')} steps"
    return f"the loss is {_number(warned, 'loss')}; it was {usual} (median {_number(warned, 'median')})"


def _lr_out_of_range(warned: Warned) -> str:
    before = warned.facts.get("before")
    was = "" if before is None else f"; it was {_number(warned, 'before')}"
    return f"the learning rate is {_number(warned, 'lr')}{was}"


def _lr_jump(warned: Warned) -> str:
    now, before = _number(warned, "lr"), _number(warned, "before")
    far = _times(warned, "lr", "largest")
    return f"the learning rate jumped from {before} to {now}, {far} the largest before"


def _scale_falling(warned: Warned) -> str:
    left_out = words.count(int(_value(warned, "falls") or 0), "update")
    now, before = _number(warned, "scale"), _number(warned, "before")
    return f"{left_out} in a row were left out, while the loss scale fell from {before} to {now}"


def _batch_outlier(warned: Warned) -> str:
    sample, of = _value(warned, "sample"), _number(warned, "samples")
    who = _of(warned) if sample is None else f"sample {int(sample)} of {of} in {_of(warned)}"
    where = f", {_index(warned)}," if _index(warned) else ""
    others = int(_value(warned, "others") or 0)
    more = f", and {words.count(others, 'other')} {'holds' if others == 1 else 'hold'} such" if others else ""
    aside = int(_value(warned, "aside") or 0)
    but = f"but for {aside} such, " if aside else ""
    before = f"{but}the largest of {_number(warned, 'batches')} batches before was {_number(warned, 'largest')}"
    score = f"{_number(warned, 'deviations')} standard deviations above the mean, by logarithms"
    return f"{who}{where} holds a value of size {_number(warned, 'size')}{more}; {before} ({score})"


def _batch_longer(warned: Warned) -> str:
    now, before = shape_of(warned, "shape"), shape_of(warned, "longest")
    times = f"{words.number(float(f'{math.prod(now) / max(math.prod(before), 1):.2g}'))} times as many values"
    most = f"in the largest of {_number(warned, 'batches')} batches before"
    return f"{_of(warned)} is {_shape(now)}: {times} as {most} ({_shape(before)})"


def shape_of(warned: Warned, name: str) -> list[int]:
    """Return a shape among the facts of a warning; empty where there is none that can be one."""
    value = warned.facts.get(name)
    known = isinstance(value, list) and all(isinstance(size, int) and not isinstance(size, bool) for size in value)
    return list(value) if known and isinstance(value, list) else []


def _shape(sizes: list[int]) -> str:
    return f"[{'x'.join(map(str, sizes))}]"


def _index(warned: Warned) -> str:
    dataset, index = warned.facts.get("dataset"), warned.facts.get("index")
    row = _value(warned, "row")
    if dataset is None and row is not None:
        return f"row {int(row)} of the {_number(warned, 'rows')} that the batch was picked from"
    if dataset is None:
        return ""
    return f"from {dataset}" if index is None else f"index {index} of {dataset}"


def _batch_channel(warned: Warned) -> str:
    sizes = f"values up to {_number(warned, 'size')}; half of the channels stay below {_number(warned, 'others')}"
    return f"channel {_number(warned, 'channel')} of {_of(warned)} holds {sizes}: it is not normalised"


def _half_headroom(warned: Warned) -> str:
    share = _value(warned, "share")
    part = "near the end" if share is None else f"at {100 * share:.0f} %"
    at = f"{_of(warned)} is {part} of float16's range ({_number(warned, 'size')} of 65504)"
    left, doubling = _value(warned, "left"), _value(warned, "doubling")
    if left is None or doubling is None:
        return at
    soon = f"in about {words.count(round(left), 'step')}" if left >= 1 else "within a step"
    pace = f"doubling every {words.count(max(round(doubling), 1), 'step')}"
    return f"{at}, {pace}: overflow {soon}, if it goes on like that"


def _second_moment_underflow(warned: Warned) -> str:
    lost, numel = (int(_value(warned, key) or 0) for key in ("lost", "numel"))
    where = f"in {lost:,} of {words.count(numel, 'value')} of {warned.name or 'a parameter'}"
    kind = f"{warned.facts.get('dtype', 'its dtype')}, eps {_number(warned, 'eps')}"
    return f"Adam's second moment underflowed {where} ({kind}): updates reach {_number(warned, 'ratio')} learning rates"


def _gradients_zero(warned: Warned) -> str:
    who, many = warned.facts.get("optimizer", "the optimizer"), _number(warned, "steps")
    before = _value(warned, "before")
    clip = f" once they are clipped (their norm was {_number(warned, 'before')} before)" if before else ""
    loss = f"the loss is {_number(warned, 'loss')}"
    said = f"all gradients of {who} are exactly 0{clip}, for {many} steps in a row, while {loss}"
    return f"{said}: these steps trained nothing"


def _weights_unchanged(warned: Warned) -> str:
    tensors, numel = (int(_value(warned, key) or 0) for key in ("tensors", "numel"))
    name = warned.name or "a parameter"
    which = name if tensors < 2 else f"{name} and {tensors - 1} more"
    trained = int(_value(warned, "of") or 0)
    values = (
        words.count(numel, "value") if numel >= trained else f"looked at {numel:,} of {words.count(trained, 'value')}"
    )
    looked = f"{which} ({values}, {warned.facts.get('dtype', 'floats')})"
    by = f"the gradient norm is {_number(warned, 'norm')}, the learning rate {_number(warned, 'lr')}"
    who = warned.facts.get("optimizer", "the optimizer")
    return f"{words.count(int(_value(warned, 'steps') or 0), 'update')} of {who} in a row did not change {looked}: {by}"


def _passed_over(warned: Warned) -> str:
    many, kind = _number(warned, "losses"), words.bad_value(_value(warned, "value")) or "bad"
    return f"the script made no step of {many} {kind} losses in a row, and no update since step {warned.step}"


TEXTS: dict[str, Callable[[Warned], str]] = {
    "grad_norm_spike": _norm_spike,
    "grad_norm_growth": _norm_growth,
    "loss_spike": _loss_spike,
    "lr_out_of_range": _lr_out_of_range,
    "lr_jump": _lr_jump,
    "loss_scale_falling": _scale_falling,
    "half_headroom": _half_headroom,
    "second_moment_underflow": _second_moment_underflow,
    "batch_outlier": _batch_outlier,
    "batch_channel": _batch_channel,
    "batch_longer": _batch_longer,
    "gradients_zero": _gradients_zero,
    ON_THE_WAY: _passed_over,
    "weights_unchanged": _weights_unchanged,
    drawn.SLUG: drawn.told,
    refused.MATRIX: refused.told_matrix,
    refused.ARGUMENT: refused.told_argument,
}

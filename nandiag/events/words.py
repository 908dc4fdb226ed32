"""Numbers, ranks and non-finite values in words, the same in live lines, findings and reports (launcher, reader)."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping, Sequence

from nandiag.events.facts import TensorFact
from nandiag.events.forms import NON_FINITE

MOST_RANGES = 6
_EXACT = 17  # digits that tell any two numbers apart


def number(value: float | None) -> str:
    """Return a number in short human form: ``65504``, ``3.4e38``, ``nan``, ``+inf``; ``?`` for one not known.

    1 is where many functions end: what is not quite 1 shows it (``1.0000001``).
    """
    if value is None:
        return "?"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    size = abs(value)
    plain = value == 0 or 1e-3 <= size < 1e6
    digits = 3 if not plain else 6 if value == int(value) else max(4, len(str(int(size))))
    while size != 1 and digits < _EXACT and format(size, f".{digits}g") == "1":
        digits += 1
    mantissa, _, exponent = format(value, f".{digits}g").partition("e")
    return mantissa if not exponent else f"{mantissa}e{int(exponent)}"


def ranks(numbers: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 0-3 and 7`` or ``ranks 0, 2-3 and 7``; long lists end in ``and N more``."""
    ordered = sorted(set(numbers))
    if not ordered:
        return "no rank"
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    spans = _spans(ordered)
    told = [str(low) if low == high else f"{low}-{high}" for low, high in spans[:MOST_RANGES]]
    left = sum(high - low + 1 for low, high in spans[MOST_RANGES:])
    *first, last = [*told, *([f"{left} more"] if left else [])]
    return f"ranks {', '.join(first)} and {last}" if first else f"ranks {last}"


def _spans(ordered: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for value in ordered:
        if spans and value == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    return spans


def lines(numbers: Sequence[int]) -> str:
    """Return ``line 3``, ``lines 3 and 7`` or ``lines 3, 7 and 9``."""
    *first, last = map(str, numbers)
    return f"lines {', '.join(first)} and {last}" if first else f"line {last}"


def file_name(path: object) -> str:
    """Return the last part of a path, of whichever system; of None nothing."""
    return "" if path is None else str(path).replace("\\", "/").rpartition("/")[2]


def place(at: Sequence[object]) -> str:
    """Return ``train.py:14`` of a path and a line."""
    return f"{file_name(at[0])}:{at[1]}"


def few(names: Sequence[str], total: int | None = None, most: int = 3) -> str:
    """Return ``a, b, c and 12 more``; ``total`` counts those without a name too."""
    shown = names[:most]
    left = max(len(names), total or 0) - len(shown)
    return ", ".join(shown) + (f" and {left:,} more" if left > 0 else "")


def own_function(node: str | None) -> str | None:
    """Return the name of the script's ``autograd.Function`` whose backward ``node`` is; torch's own are none.

    Nodes of the engine itself end in a number.
    """
    name = node.removesuffix("Backward") if node is not None and node.endswith("Backward") else None
    return None if name in _FUNCTIONS_OF_TORCH else name


# Python functions of torch in whose backward code of the script runs: hooks, and what is recomputed.
HOOK = "BackwardHookFunctionBackward"
_FUNCTIONS_OF_TORCH = frozenset({"BackwardHookFunction", "CheckpointFunction", "CompiledFunction", "_DDPSink"})


def cut(text: str, most: int = 300) -> str:
    """Return so many characters of a text at most, cut behind a word, with ``...`` for what is left out.

    Where a long word (a list, say) would take more than half of it along, it is cut within.
    """
    if len(text) <= most:
        return text
    kept = text[: most - 3]
    whole = kept if text[most - 3].isspace() else kept.rpartition(" ")[0]
    return f"{(kept if 2 * len(whole) < len(kept) else whole).rstrip()}..."


def count(amount: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``, ``1,024 steps``."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def bad_value(value: float | None) -> str | None:
    """Return ``NaN``, ``+Inf`` or ``-Inf``, or ``None`` for a finite or unknown number."""
    if value is None or math.isfinite(value):
        return None
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def as_number(word: object) -> float | None:
    """Return a number that was noted, ``nan``, ``inf`` and ``-inf`` as words; ``None`` for anything else."""
    if isinstance(word, str) and word in NON_FINITE:
        return NON_FINITE[word]
    if isinstance(word, int) and abs(word) > _LARGEST:
        return None  # no worker writes such a one
    return float(word) if isinstance(word, int | float) and not isinstance(word, bool) else None


_LARGEST = 10**300
_LAYS = frozenset(
    {"copy", "fill", "full", "full_like", "new_full", "masked_fill", "index_fill", "index_put", "scatter"}
    | {"lift_fresh", "scalar_tensor"}
)
_NUMBERS = ("arg0", "arg1", "arg2", "arg3", "value", "fill_value")


def laid(name: str, inputs: Sequence[TensorFact], facts: Mapping[str, object]) -> str | None:
    """Return ``NaN`` or ``+Inf`` where the op ``name`` only lays a number that is not finite into a tensor.

    A number that is laid in by an index is a tensor of one value then, the last that goes in.
    """
    if op(name).rstrip("_") not in _LAYS:
        return None
    numbers = (value for word in _NUMBERS if (value := as_number(facts.get(word))) is not None)
    bad = next((bad_value(value) for value in numbers if not math.isfinite(value)), None)
    last = inputs[-1:]
    return bad or (bad_kind(last) if any(not fact.shape and fact.bad for fact in last) else None)


def bad_kind(facts: Iterable[TensorFact]) -> str | None:
    """Return ``NaN``, ``+Inf``, ``-Inf``, ``Inf`` (both signs) or ``NaN and Inf``; ``None`` when all are finite."""
    return _kind(*_counts(facts))


def _counts(facts: Iterable[TensorFact]) -> tuple[int, int, int]:
    nan = posinf = neginf = 0
    for fact in facts:
        nan, posinf, neginf = nan + fact.nan, posinf + fact.posinf, neginf + fact.neginf
    return nan, posinf, neginf


def _kind(nan: int, posinf: int, neginf: int) -> str | None:
    inf = "Inf" if posinf and neginf else "+Inf" if posinf else "-Inf" if neginf else None
    if nan:
        return "NaN and Inf" if inf else "NaN"
    return inf


def made_kind(outputs: Iterable[TensorFact], inputs: Iterable[TensorFact]) -> str | None:
    """Return ``bad_kind`` of what came out of an op and had not gone in; of all that came out where nothing is new."""
    out, into = _counts(outputs := tuple(outputs)), _counts(inputs)
    return _kind(*(0 if there else amount for amount, there in zip(out, into, strict=True))) or bad_kind(outputs)


_FROM_ABOVE = frozenset({"exp", "exp2", "expm1", "square", "cosh"})


def numpy_kind(said: str) -> str | None:
    """Return what numpy made where it ``said`` so: the sign is not known of most functions, whatever came of it."""
    kind, _, name = said.partition(" encountered in ")
    if kind == "divide by zero":
        return "-Inf" if name.startswith("log") else "Inf"
    if kind == "overflow":
        return "+Inf" if name in _FROM_ABOVE else "Inf"
    return "NaN" if kind == "invalid value" and name != "cast" else None


def by_numpy(facts: Mapping[str, object], came: Iterable[TensorFact]) -> str | None:
    """Return what a line of numpy's made by what it said; None where that is not told, and what ``came`` of it is.

    A ``number`` was seen as it was made; of an array that was not, and that came as NaN alone, no infinity is told.
    """
    made = numpy_kind(str(facts.get("numpy")))
    unseen = facts.get("number") is not True and made != "NaN"
    return None if unseen and bad_kind(came) == "NaN" else made


def tensor(fact: TensorFact) -> str:
    """Return one line on a tensor: dtype and shape, what is bad in it, and the range of the finite part."""
    shape = "x".join(str(size) for size in fact.shape) or "scalar"
    parts = [f"{fact.dtype.removeprefix('torch.')} [{shape}]"]
    if fact.numel < math.prod(fact.shape):
        parts.append(f"a shard of {fact.numel:,} of it")
    if fact.guessed:
        return ", ".join([*parts, "whose values are not known"])
    for amount, what in ((fact.nan, "NaN"), (fact.posinf, "+Inf"), (fact.neginf, "-Inf")):
        if amount:
            parts.append(f"{amount:,} {what}" if fact.numel > 1 and fact.counted else what)
    if fact.zeros and fact.numel > 1:
        parts.append(count(fact.zeros, "zero"))
    if fact.min is not None and fact.max is not None:
        low, high = number(fact.min), number(fact.max)
        span = low if low == high else f"{low} to {high}"
        parts.append(span if not fact.bad else f"finite part {'all ' if low == high else ''}{span}")
    return ", ".join(parts)


def named_tensor(fact: TensorFact, what: str) -> str:
    """Return one line on a tensor with its name, for a place that says ``what`` it is (input, output) already."""
    name = (fact.name or "").removeprefix(what).strip() if (fact.name or "").split(" ")[0] == what else fact.name
    return (f"{name}: " if name and name != "input" else "") + tensor(fact)


def signal_name(code: int) -> str:
    """Return ``signal 9 (SIGKILL)``."""
    try:
        return f"signal {code} ({signal.Signals(code).name})"
    except ValueError:
        return f"signal {code}"


def op(name: str) -> str:
    """Return ``exp`` for ``aten.exp.default``; other names as they are."""
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else name


def module(name: str | None, kind: str | None) -> str | None:
    """Return the name of a module; a child known by its number alone is ``module 0 (Scale)``, after its class."""
    if not name or not name.replace(".", "").isdigit():
        return name
    return f"module {name}" + (f" ({kind})" if kind else "")

"""Which collective or message carried damage to a rank, as its look tells (reader side)."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nandiag.analysis.timeline import Seen, Timeline
from nandiag.events import Harm, Looked, Sent, Site, TensorFact, words

# What torch calls a group that was given no description.
_NAMELESS = frozenset({"default_pg", "0", "undefined"})
_MOST_LINES = 3
_CALLED = len(("file", "line", "source", "function", "column"))
# What may leave a dtype that all that goes in fits.
_GROWS = frozenset({"sum", "product", "avg", "premul_sum"})
_OPS = {"all_reduce": "c10d.allreduce_.default", "reduce_scatter": "c10d.reduce_scatter_.default",
        "reduce_scatter_tensor": "c10d._reduce_scatter_base_.default",
        "reduce_scatter_single": "c10d._reduce_scatter_base_.default",
        "reduce": "c10d.reduce_.default"}  # fmt: skip

_Key = tuple[str, tuple[int, ...], int, str]


def carried(look: Looked) -> tuple[object, ...] | None:
    """Return which collective a look names (kind, ranks, number in the step), ``None`` where it names none."""
    ranks = _ranks(look)
    if not ranks:
        return None
    return _kind(look.facts.get("carried_by")), ranks, look.facts.get("number")


def sent_through(look: Looked) -> set[tuple[object, ...]]:
    """Return the collectives into which this rank put bad values, as :func:`carried` names them."""
    keys = look.facts.get("sent_through")
    found: set[tuple[object, ...]] = set()
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, list) and len(key) == 3 and isinstance(key[1], list):
            found.add((_kind(key[0]), tuple(key[1]), key[2]))
    return found


def _kind(name: object) -> object:
    # The two ends of one message.
    return "send" if name == "recv" else name


def _ranks(look: Looked) -> tuple[int, ...]:
    ranks = look.facts.get("group_ranks")
    return tuple(one for one in ranks if isinstance(one, int)) if isinstance(ranks, list) else ()


def way_of(look: Looked) -> str | None:
    """Return the collective that a look names in words, ``None`` where it names none."""
    kind, ranks = look.facts.get("carried_by"), _ranks(look)
    handed = look.facts.get("handed") if kind is None and look.source == "received" else None
    if isinstance(handed, list) and len(handed) == 4 and isinstance(handed[1], list):  # the one way, by what ranks gave
        kind, ranks = handed[0], tuple(one for one in handed[1] if isinstance(one, int))
    if not isinstance(kind, str) or not ranks:
        return _of_script(look)
    if kind in {"send", "recv"}:
        called = look.facts.get("called_in")  # of the sender: what was called here is the receiving
        return _message(ranks) + (f", in {called}" if isinstance(called, str) else "")
    buckets, number = look.facts.get("buckets"), look.facts.get("number")
    if isinstance(buckets, list):
        return f"the {kind} of {_buckets(look, len(buckets))}{_group(look, ranks)}"
    if (own := _own_line(look, kind)) is not None:
        return f"the script's {kind} in {own},{_group(look, ranks)}"
    if (backward := _backward_of(look)) is not None:
        return f"the backward of {backward},{_group(look, ranks)}"
    which = f", collective {number} of the step" if isinstance(number, int) else ""
    return f"{kind}{which}{_group(look, ranks)}"


def _backward_of(look: Looked) -> str | None:
    """Return the script's own call in whose backward the collective was made: of ``all_gather`` that is a scatter."""
    site = look.site
    made = None if site is None or site.node is None else re.fullmatch(r"_?([A-Z]\w+?)Backward\d*", site.node)
    if site is None or made is None:
        return None
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", made[1]).lower()
    line = line_of_call(site, name)
    return None if line is None else f"{name} in {line}"


def _message(ranks: tuple[int, ...]) -> str:
    return f"the message that rank {ranks[0]} sent to rank {ranks[-1]}"


def of_finite(looks: Iterable[Seen[Looked]]) -> list[Seen[Looked]]:
    """Return what all ranks of a reduction by the script's call got bad of it, each at the line of the call.

    None where the part of one of them is not known to have been finite, or what it got was written into since.
    """
    through: dict[tuple[object, ...], dict[int, Seen[Looked]]] = {}
    for one in looks:
        facts = one.event.facts
        handed = facts.get("handed") if one.event.source == "received" else None
        if not isinstance(handed, list) or not (facts.get("given_finite") is True and facts.get("as_it_came") is True):
            if one.event.outcome == "found" and one.event.source != "received":
                return []
            continue
        if facts.get("reduce") in _GROWS:
            through.setdefault((handed[0], tuple(handed[1]), *handed[2:]), {})[one.rank] = one
    whole = (own for (_, ranks, *_), own in through.items() if isinstance(ranks, tuple) and set(ranks) <= {*own})
    return [replace(one, event=_at_call(one.event)) for _, one in sorted(next(whole, {}).items())]


def of_halves(looks: Iterable[Seen[Looked]]) -> tuple[dict[int, float], Seen[Looked]] | None:
    """Return the sizes of what each rank put into the first sum in float16 that came out bad, and the look at its line.

    None where what one of its ranks put in is not known to have been finite.
    """
    gave: dict[_Key, dict[int, float]] = {}
    came: dict[_Key, Seen[Looked]] = {}
    for one in looks:
        for key, largest, bad, call in _halves(one.event):
            gave.setdefault(key, {})[one.rank] = largest
            if bad is not None and call.get("reduce") in _GROWS:
                came.setdefault(key, replace(one, event=_as_halved(one.event, key, bad, call)))
    first = next((key for key in came if {*key[1]} <= {*gave[key]}), None)
    return None if first is None else (gave[first], came[first])


def _halves(look: Looked) -> Iterator[tuple[_Key, float, list[Any] | None, dict[str, object]]]:
    """Yield each sum in float16 of a look's step: which it is, what went in, what came out bad, and the call."""
    rows = look.facts.get("halves")
    for row in rows if isinstance(rows, list) else ():
        with contextlib.suppress(TypeError, ValueError):
            (kind, ranks, number, group), largest, bad, call = row
            yield (str(kind), tuple(ranks), number, str(group)), float(largest), bad, dict(call)


def _as_halved(look: Looked, key: _Key, bad: list[Any], call: dict[str, object]) -> Looked:
    shape, nan, posinf, neginf = bad
    out = TensorFact("float16", tuple(shape), math.prod(shape), nan=nan, posinf=posinf, neginf=neginf)
    facts = {**call, "carried_by": key[0], "group_ranks": list(key[1]), "handed": list(key), "given_finite": True}
    made = Looked("found", look.method, look.step, phase="collective", source="received", inputs=(out,), facts=facts)
    return replace(_at_call(made), micro_step=look.micro_step, seconds=look.seconds)


def came_before(look: Looked, halved: Looked) -> bool:
    """Whether what a look received came by an earlier call of the group that a sum in float16 is of."""
    one, other = look.facts.get("handed"), halved.facts.get("handed")
    if look.source != "received" or not (isinstance(one, list) and isinstance(other, list)):
        return False
    (_, ranks, number, group), (_, sums, last, summed) = one, other
    known = isinstance(number, int) and isinstance(last, int)
    return known and (tuple(ranks), group) == (tuple(sums), summed) and number < last


def is_at(one: Seen[Looked], other: Seen[Looked]) -> bool:
    """Whether two looks show the same line."""
    here, there = one.event.site, other.event.site
    return here is not None and there is not None and (here.file, here.line) == (there.file, there.line)


def number_of(look: Looked, name: str) -> float | None:
    """Return a finite number that a look tells by that name, else None."""
    size = look.facts.get(name)
    known = isinstance(size, int | float) and not isinstance(size, bool) and math.isfinite(size)
    return float(size) if known and isinstance(size, int | float) else None


def reduction_of(look: Looked) -> str:
    """Return the name of a reduction with its operation."""
    name, by = look.facts.get("carried_by") or "a reduction", look.facts.get("reduce")
    return f"{name} ({by.upper()})" if isinstance(by, str) else str(name)


def _at_call(look: Looked) -> Looked:
    called, kind = look.facts.get("called_at"), look.facts.get("carried_by")
    if not isinstance(called, list) or len(called) != _CALLED:
        return look
    file, line, source, function, column = called
    place = Site(
        op=_OPS.get(str(kind)), file=file, line=line, source=source, function=function,
        column=None if column is None else (column[0], column[1]),
    )  # fmt: skip
    used = look.site and _line(look.site)
    return replace(look, site=place, inputs=(), outputs=look.inputs, facts={**look.facts, "first_used_in": used})


def _own_line(look: Looked, kind: str) -> str | None:
    known, called = look.facts.get("called_in"), look.facts.get("called_at")
    if isinstance(called, list) and len(called) == _CALLED:
        return line_of_call(Site(file=called[0], line=called[1], source=called[2]), kind)
    return known if isinstance(known, str) else line_of_call(look.site, kind)


def given_ways(harm: Seen[Harm], by: set[int], since: int, timeline: Timeline) -> str | None:
    """Return in words by which call the ranks ``by`` gave what was bad to the rank of a harm; None where by none.

    Asked for is the newest of what was given from step ``since`` on; what an update left is seen a step late.
    """
    last = harm.event.step + (harm.event.phase == "optimizer")
    near = [one for one in timeline.sent if one.attempt == harm.attempt and since <= one.event.look.step <= last]
    near = [one for one in near if one.rank in by and one.rank != harm.rank and harm.rank in _takers(one.event)]
    newest = max((one.event.look.step for one in near), default=since)
    ways = {(one.event.way, one.event.ranks): one.event for one in near if one.event.look.step == newest}
    if len(ways) != 1:
        return None
    (((way, ranks), _),) = ways.items()
    lines = dict.fromkeys(line_of_call(one.event.site, way) for one in near if one.event.look.step == newest)
    where = _either([line for line in lines if line is not None]) if None not in lines else None
    if way == "send":
        return _message(ranks) + (f", in {where}" if where else "")
    group = f" in the group of {words.ranks(ranks)}"
    return f"the script's {way} in {where},{group}" if where else f"{way}{group}"


def _takers(sent: Sent) -> tuple[int, ...]:
    return sent.ranks[1:] if sent.way == "send" else sent.ranks


def _either(lines: list[str]) -> str | None:
    """Return a few lines as one phrase, the file named once where it is the same; None where they are too many."""
    if not 0 < len(lines) <= _MOST_LINES:
        return None
    files = {line.partition(" of ")[2] for line in lines}
    if len(files) > 1:
        return " or ".join(lines)
    return f"{' or '.join(line.partition(' of ')[0] for line in lines)} of {files.pop()}"


def line_of_call(site: Site | None, kind: str) -> str | None:
    """Return the line where the script calls the collective, None where a wrapper does that for it."""
    return None if site is None or kind not in (site.source or "") else _line(site)


def _of_script(look: Looked) -> str | None:
    """Return the exchange of gradients that the script makes by itself, which a replay of one rank left out."""
    behind = look.facts.get("exchanged_by")
    if isinstance(behind, list) and len(behind) == len(("name", "file", "line")):
        line = _line(Site(file=behind[1], line=behind[2]))
        return None if line is None else f"the script's {behind[0]} in {line}"
    name, site = look.facts.get("collective"), look.site
    line = None if look.facts.get("by") != "script" or site is None else _line(site)
    return None if line is None or not isinstance(name, str) else f"the script's {name} in {line}"


def is_exchanged(one: Seen[Looked], timeline: Timeline) -> bool:
    """Whether bad gradients of a rank went through the script's own exchange, and its loss was finite."""
    if "exchanged_by" not in one.event.facts:
        return False
    here = (one.rank, one.attempt, one.event.step)
    return not any(harm.event.what == "loss" and (harm.rank, harm.attempt, harm.event.step) == here
                   for harm in timeline.harms)  # fmt: skip


def _line(site: Site) -> str | None:
    known = site.file is not None and site.line is not None
    return f"line {site.line} of {words.file_name(site.file)}" if known else None


def _group(look: Looked, ranks: tuple[int, ...]) -> str:
    name = look.facts.get("group")
    named = f" {name}" if isinstance(name, str) and name not in _NAMELESS else ""
    return f" in the group{named} of {words.ranks(ranks)}"


def _buckets(look: Looked, bad: int) -> str:
    total, names = look.facts.get("of_buckets"), look.facts.get("bucket_parameters")
    size = look.facts.get("bucket_size")
    known = [str(name) for name in names] if isinstance(names, list) else []
    held = words.few(known, size if isinstance(size, int) else None, most=2)
    if total == 1:
        return f"the gradients in one bucket ({held})"
    return f"{bad} of {total} gradient buckets (the first: {held})"

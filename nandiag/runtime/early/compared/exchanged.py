"""Where the script exchanged weights between updates: what comes of that is none of the optimizer's doing (worker)."""

from __future__ import annotations

import math
import re

from torch import Tensor

from nandiag.events import words
from nandiag.runtime.collectives.ring import RING, Call
from nandiag.runtime.frames import USER, Frame, kind_of, source

_SUMS = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
_GIVES = frozenset({"broadcast", "send", "recv", "isend", "irecv", "all_gather", "all_gather_into_tensor", "gather"})
_MOST, _NEAR, _AROUND, _WAY = 2, 4, 12, 2
# A sum that is divided, here or in the next lines, is a mean; so is one of weights that were each given a share.
_DIVIDES = re.compile(r"/|\bdiv_?\(|\bAVG\b|\bmean\(|\*=|\bmul_\(|\blerp|_foreach_(?:mul|div|lerp)|\balpha\s*=")
_MULTIPLIES = re.compile(rf"{_DIVIDES.pattern}|[\w)\]]\s*\*(?!\*)|\b(?:mul|multiply|addcmul_?|addcdiv_?)\(")
# What pulls at one copy is a share of a difference: each rank's is small, and they add up.
_PULLS = re.compile(r"\*\s*\([^()]*\w\s*-\s*\w[^()]*\)|\([^()]*\w\s*-\s*\w[^()]*\)\s*\*")
_GIVEN = re.compile(r"\(\s*(?:tensor\s*=\s*)?([A-Za-z_]\w*)")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def exchanged_between(trained: list[Tensor]) -> tuple[str, ...]:
    """Return the lines (``file:line: text``) of the newest calls that exchanged what is as large as the weights.

    Sums come first. A sum that is made a mean is none, nor one weight that is handed on as it is.
    """
    sizes = [one.numel() for one in trained]
    found: dict[str, bool] = {}
    for call in reversed(RING.calls):
        if (line := _line(call, set(sizes), sum(sizes))) is not None:
            found.setdefault(line, call.op not in _SUMS)
    return tuple(sorted(found, key=lambda line: found[line]))[:_MOST]


def _line(call: Call, each: set[int], total: int) -> str | None:
    frame, alone = call.frame, call.group is None or len(call.group.members) == 1
    if (
        alone
        or not call.between
        or call.step < 1
        or frame is None
        or call.dtype is None
        or not call.dtype.is_floating_point
    ):
        return None
    size = math.prod(call.shapes[0]) if call.shapes else 0
    fits = call.op in _SUMS | _GIVES and (size == total or (call.op in _SUMS and size in each))
    if size < 2 or not fits or kind_of(frame.file) != USER:
        return None
    text = source(frame, frame.line) or ""
    if call.op not in text or (call.op in _SUMS and (not _adds_up(call) or _is_mean(frame, call.op))):
        return None
    return f"{words.place((frame.file, frame.line))}: {text.strip()}"


def _adds_up(call: Call) -> bool:
    """Whether it is a plain sum: no largest, no mean, and none that multiplies what it adds."""
    given = "sum" if call.reduce is None else str(getattr(call.reduce, "op", call.reduce)).lower()
    return "sum" in given and "premul" not in given


def _is_mean(frame: Frame, op: str) -> bool:
    own = {line for *_, line in frame.code.co_lines() if line}
    lines = range(max(min(own), frame.line - _AROUND), min(max(own), frame.line + _AROUND) + 1)
    near = {line: (source(frame, line) or "").partition("#")[0] for line in lines}
    if any(_DIVIDES.search(near.get(frame.line + at, "")) for at in range(-1, _NEAR)):
        return True
    given = _of_given(near, frame.line, op)
    return any(_MULTIPLIES.search(one) and not (op == "reduce" and _PULLS.search(one)) for one in given)


def _of_given(near: dict[int, str], line: int, op: str) -> list[str]:
    """Return the lines around that have what goes in, and those that make what that is made of.

    The call's own text is among them: it may be given a product.
    """
    behind = near[line].partition(op)[2]
    found = _GIVEN.match(behind)
    names, lines = set() if found is None else {found[1]}, [behind]
    lines += [one for one in near.values() if names & set(_NAME.findall(one))]
    for _ in range(_WAY):
        made = [one for one in near.values() if any(re.match(rf"\s*(?:for )?{name}\b", one) for name in names)]
        names |= {name for one in made for name in _NAME.findall(one)}
        lines += made
    return lines

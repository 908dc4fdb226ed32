"""Where the script exchanged weights between updates: what comes of that is none of the optimizer's doing (worker)."""

from __future__ import annotations

import ast
import math
import re
from keyword import kwlist

from torch import Tensor

from nandiag.events import words
from nandiag.runtime.collectives.ring import RING, Call
from nandiag.runtime.evidence.around.place import place_of
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
_INTO = re.compile(r"_foreach_|\bout\s*=")  # what is written into need not be what a line begins with
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
    given = _of_given(near, frame, op)
    return any(_MULTIPLIES.search(one) and not (op == "reduce" and _PULLS.search(one)) for one in given)


def _of_given(near: dict[int, str], frame: Frame, op: str) -> list[str]:
    """Return the lines that make what goes in, and what that is made of, and those behind that use what came out.

    The call's own text is among them: it may be given a product. What else is made of it before is a penalty, say; and
    what a loop of its own goes through has that name in other loops too.
    """
    behind = near[frame.line].partition(op)[2]
    found = _GIVEN.match(behind)
    given = None if found is None else found[1]
    names, lines = set() if given is None else {given}, [behind]
    own = near if given is None else _own_lines(near, frame, given)
    lines += [one for at, one in own.items() if (at >= frame.line or _INTO.search(one)) and names & _names(one)]
    for _ in range(_WAY):
        made = [one for at, one in near.items()
                if any(_is_made(one, name) for name in names if name != given or at in own)]  # fmt: skip
        names |= {name for one in made for name in _names(one)}
        lines += made
    return lines


def _own_lines(near: dict[int, str], frame: Frame, given: str) -> dict[int, str]:
    """Return those of the innermost loop around the call that gives what goes in its name, all where none does."""
    place = place_of(frame)
    loops = [] if place is None else [one for one in place.within if isinstance(one, ast.For | ast.AsyncFor)]
    own = next((one for one in reversed(loops) if given in map(_name, ast.walk(one.target))), None)
    last = None if own is None else own.end_lineno
    return near if own is None or last is None else {at: near[at] for at in near if own.lineno <= at <= last}


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _names(text: str) -> set[str]:
    return {*_NAME.findall(text)} - {*kwlist}


def _is_made(text: str, name: str) -> bool:
    """Whether a line, or what stands behind a colon of it, begins with a name."""
    return re.search(rf"(?:^|[:;])\s*(?:for )?{name}\b", text) is not None

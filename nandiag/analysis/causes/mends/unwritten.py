"""Memory of which a part was used as it was handed out: what to begin with, or who is to send it (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.report import Suggestion
from nandiag.events import words

HANDED_OUT = {
    "empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros", "empty_strided": "", "empty_permuted": "",
    "new_empty_strided": "",
}  # fmt: skip


_BROADCASTS = re.compile(r"\bbroadcast\(\s*(\w+)\b")
_EVERY = "Or write every element before it is used: look at what the lines behind this one leave out."
_READ = "Or read no more than was written: {}:{} is the first to read what was not. Zeros there may hide a wrong index."
_STATE = re.compile(r"\b(?:state_dict|named_buffers|named_parameters|buffers|parameters)\(")
_BEGIN = "Begin with a copy: it stands for a weight or a buffer of a model, of which zeros may be no sound value."


def left(facts: Facts, op: str) -> Cause:
    """Memory was used of which a part was left as it was handed out."""
    fitted = (fitting.renamed(facts.origin, name, other) for name, other in HANDED_OUT.items() if other)
    code = next((line for line in fitted if line is not None), "torch.zeros_like(x)")
    zeros = Suggestion("Begin with zeros, where nothing is to stand in what is left out.", code)
    begin = _copied(facts, op) or zeros
    every = Suggestion(_first_read(facts) or _EVERY)
    sent = _sent(facts)
    # What was seen of torch's calls may leave out what numpy wrote.
    sure = "as_filled" in facts.extra or "birth" not in facts.extra
    wrote = "nothing wrote" if sure else "no call of torch's was seen to write"
    text = f"{op} hands out memory as it lies; a part that {wrote} was used"
    mends = (*_received(facts), begin, every) if sent is None else (sent,)
    return Cause("uninitialised_memory", (text,), mends, PROVEN if sure else LIKELY)


def _received(facts: Facts) -> tuple[Suggestion, ...]:
    """Say so where it may be another rank that is to send it: zeros would train these ranks on them, and nobody see."""
    if "handed_on" in facts.extra:
        return ()  # it is what this rank sends
    if facts.world <= len(facts.origin.ranks) or facts.origin.phase not in {"data", "init"}:
        return ()
    return (Suggestion(_UNSENT.format(words.ranks(facts.origin.ranks))),)


_UNSENT = (
    "If {} is to receive it from another rank, the call that sends it is missing: torch.distributed.broadcast, on all "
    "ranks, before it is used. Zeros in its place would train on, and wrongly."
)


def _first_read(facts: Facts) -> str | None:
    at = facts.extra.get("read_at")
    if not isinstance(at, list) or len(at) != len(("file", "line")) or at[1] == facts.origin.line:
        return None
    return _READ.format(words.file_name(at[0]), at[1])


def _copied(facts: Facts, op: str) -> Suggestion | None:
    """Return the line with a copy of what it was made like, where that is a model's and it was copied back as it is.

    A sum or a momentum, which begins with zeros, is changed before it is used.
    """
    used = words.op(str(facts.extra.get("first_used_by") or ""))
    found = fitting.parsed(facts.origin)
    like = None if found is None or op != "empty_like" or used != "copy_" else fitting.target(found[1], op)
    if like is None or _STATE.search(facts.origin.source or "") is None:
        return None
    return Suggestion(_BEGIN, fitting.whole(facts.origin, f"{fitting.bracketed(like)}.detach().clone()"))


def _sent(facts: Facts) -> Suggestion | None:
    """Say who is to send what this rank has sent to others unwritten: zeros would go to them as well."""
    name = (facts.origin.source or "").partition("=")[0].strip()
    line = next((use for use in facts.uses if _BROADCASTS.findall(use) == [name]), None)
    if line is None or not facts.received:
        return None
    who = f"{words.ranks(facts.origin.ranks)} sent it to {words.ranks(facts.received)}, and has not written it"
    text = f"{who}: broadcast it from a rank that fills it (src), or fill it here. The line is {line}."
    return Suggestion(text[:1].upper() + text[1:])


def filled(facts: Facts) -> Suggestion | None:
    """Return the line with the memory initialised behind it, by its own name; of rows that are written the rest.

    ``None`` where the line gives it no name.
    """
    source = (facts.origin.source or "").strip()
    made = parsing.statement(source)
    target = made.targets[0] if isinstance(made, ast.Assign) and len(made.targets) == 1 else None
    if not isinstance(made, ast.Assign) or not isinstance(target, ast.Name) or not _hands_out(made.value):
        return None
    rest = next((one for use in facts.uses if (one := _rest(facts, use, target.id)) is not None), None)
    text = "Write every element after torch.empty: initialise it behind this line."
    if rest is not None:
        text = f"Write every element after torch.empty: initialise what {rest[1]} leaves of it."
    return Suggestion(text, f"{source}\ntorch.nn.init.normal_({target.id if rest is None else rest[0]}, std=0.02)")


def _hands_out(node: ast.expr) -> bool:
    """Whether it is the memory itself, also as a parameter, and nothing that is made of it."""
    if (inner := fitting.target(node, "Parameter")) is not None:
        return _hands_out(inner)
    name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    return name in HANDED_OUT


def _rest(facts: Facts, use: str, name: str) -> tuple[str, str] | None:
    """Return the ``w[n:]`` that a statement ``w[:n] = ...`` leaves, and its ``w[:n]``, where n is known ahead."""
    made = parsing.statement(use)
    part = made.targets[0] if isinstance(made, ast.Assign) and len(made.targets) == 1 else None
    if not isinstance(part, ast.Subscript) or ast.unparse(part.value) != name or not isinstance(part.slice, ast.Slice):
        return None
    upper = part.slice.upper if part.slice.lower is part.slice.step is None else None
    if upper is None:
        return None
    names = {one.id for one in ast.walk(upper) if isinstance(one, ast.Name)}
    ahead = all(max(facts.written(one), default=facts.origin.line or 0) < (facts.origin.line or 0) for one in names)
    known = all(facts.meaning(one) is not None for one in names)
    return (f"{name}[{ast.unparse(upper)}:]", ast.unparse(part)) if ahead or known else None

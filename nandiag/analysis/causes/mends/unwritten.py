"""Memory of which a part was used as it was handed out: what to begin with, or who is to send it (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.causes.facts import LIKELY, PROVEN, Cause, Facts
from nandiag.analysis.causes.mends.script import fitting
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
    mends = (begin, every) if sent is None else (sent,)
    return Cause("uninitialised_memory", (text,), mends, PROVEN if sure else LIKELY)


def _first_read(facts: Facts) -> str | None:
    at = facts.extra.get("read_at")
    if not isinstance(at, list) or len(at) != len(("file", "line")) or at[1] == facts.origin.line:
        return None
    return _READ.format(str(at[0]).replace(chr(92), "/").rpartition("/")[2], at[1])


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

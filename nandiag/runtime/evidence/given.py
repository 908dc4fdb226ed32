"""An op that was given a bad number of Python's: whence that came, where the script had read it off a tensor (worker).

Between a tensor and an op Python keeps no trace of a number, so that this is inferred: it is told only where one line
alone made all numbers of the kind that were read.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from nandiag.events import Looked, words
from nandiag.runtime.evidence.heard import numbers_in
from nandiag.runtime.numeric.read import alike
from nandiag.runtime.replay.case import Case
from nandiag.runtime.tape.capture import Capture

_LITERAL = re.compile(r"\b(inf|nan|Infinity|NaN)\b")
# What is known of where the values came from already.
_KNOWN = frozenset({"number", "heard", "birth"})
_READ = (
    "{} at {} was given a number of Python's that is not finite, and this line made the one such number that was read "
    "off a tensor before"
)


def with_number(case: Case, looked: Looked, capture: Capture, examine: Callable[[Tensor], Looked | None]) -> Looked:
    """Return ``looked``, or the line that made the bad number which its op was given, where the script had read it.

    In a joint case other ranks wait meanwhile: there nothing more is run.
    """
    number = None if case.joint else _given(looked)
    made = None if number is None else _maker_of(number, capture, examine)
    if made is None or (made.outcome, made.source) != ("found", "op") or looked.site is None:
        return looked
    used_at = f"{os.path.basename(looked.site.file or '')}:{looked.site.line}"
    reason = _READ.format(words.op(looked.site.op or "the op"), used_at)
    facts = {**made.facts, "first_used_by": looked.site.op, "used_at": used_at}
    if "birth" not in made.facts and made.step < looked.step:
        facts["made_at_step"] = made.step
    return replace(made, step=looked.step, method="tape", reason=reason, facts=facts, seconds=looked.seconds)


def _given(looked: Looked) -> float | None:
    """Return the bad number that the op of a look was given; None where it was given none, or its line writes one."""
    if (looked.outcome, looked.source) != ("found", "op") or looked.facts.keys() & _KNOWN:
        return None
    if looked.site is None or _LITERAL.search(looked.site.source or ""):
        return None
    return next((one for one in numbers_in(looked) if not math.isfinite(one)), None)


def _maker_of(number: float, capture: Capture, examine: Callable[[Tensor], Looked | None]) -> Looked | None:
    """Return how such a number was made: in this step or since the last one, else before the first one."""
    read = [(tensor, maker) for one, tensor, maker in capture.window.numbers if alike(one, number)]
    if len({tuple(maker.places) for _, maker in read}) > 1:
        return None
    return read_before(number, examine(read[-1][0]) if read else None, capture)


def read_before(number: float, made: Looked | None, capture: Capture) -> Looked | None:
    """Return ``made``, or how such a number was made before the first step, where that shows nothing."""
    if made is not None and (made.outcome, made.source) in {("found", "op"), ("found", "received")}:
        return made
    return made if capture.births is None else capture.births.read.of(number) or made

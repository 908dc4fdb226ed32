"""Weights that the script also exchanges between updates: the learning rate is not alone to blame (reader side)."""

from __future__ import annotations

import re
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

_RAN_AWAY = frozenset({"lr_divergence", "gradient_explosion"})
_SUM = re.compile(r"(?P<module>[\w.]+)\.all_reduce\((?P<given>[A-Za-z_][\w.]*)\s*[,)]")
# What adds up what the ranks give: copies of one rank's weights multiply nothing.
_ADDS = re.compile(r"\b(?:all_reduce|reduce|reduce_scatter|reduce_scatter_tensor)\((?!.*\b(?:MAX|MIN|AVG|PRODUCT)\b)")
_TO_ONE = re.compile(r"\breduce\(")


def beside(facts: Facts, found: Cause | None, *, rose: bool = False) -> Cause | None:
    """Return ``found``, training that ran away, with the exchange that is to be looked at too.

    A sum comes before the learning rate, unless that ``rose``, or grew alone what one rank takes as the others' pull.
    """
    lines = () if facts.compared is None else facts.compared.exchanged
    if found is None or found.slug not in _RAN_AWAY or not lines:
        return found
    sums = next((one for one in lines if _ADDS.search(one)), None)
    if sums is None:
        return _behind(found, lines[0], "")
    by_rate = found.slug == "lr_divergence" and (rose or _TO_ONE.search(sums) is not None)
    return _behind(found, sums, f": {_SUMMED}") if by_rate else _leading(found, sums)


_SUMMED = (
    "a sum over ranks that is not divided by their number multiplies them each time, and what several ranks pull at "
    "one copy adds up"
)


def _leading(found: Cause, line: str) -> Cause:
    place, _, text = line.partition(": ")
    sums = _SUM.search(text)
    first = Suggestion(
        f"Look at {place} first, and at what it leaves in the weights: {_SUMMED}.",
        None if sums is None else f"{text}\n{sums['given']} /= {sums['module']}.get_world_size()",
    )
    rest = tuple(
        replace(one, text=f"If it grows without that exchange too: {one.text[:1].lower()}{one.text[1:]}")
        for one in found.suggestions[:1]
    )
    evidence = (*found.evidence, _told(line))
    # That gradients grew says what happened, and blames no rate.
    return Cause("gradient_explosion", evidence, (first, *rest), found.strength, story=found.story, leads=True)


def _behind(found: Cause, line: str, why: str) -> Cause:
    place = line.partition(": ")[0]
    last = Suggestion(f"If it grows with that too: look at {place}, and at what it leaves in the weights{why}.")
    return replace(found, evidence=(*found.evidence, _told(line)), suggestions=(*found.suggestions, last))


def _told(line: str) -> str:
    place, _, text = line.partition(": ")
    return f"Between updates the script itself exchanges weights, or what is as large, in {place}: {text}"

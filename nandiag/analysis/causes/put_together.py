"""Weights that the script also exchanges between updates: the learning rate is not alone to blame (reader side)."""

from __future__ import annotations

import re
from dataclasses import replace

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.report import Suggestion

_RAN_AWAY = frozenset({"lr_divergence", "gradient_explosion"})
_SUM = re.compile(r"(?P<module>[\w.]+)\.all_reduce\((?P<given>[A-Za-z_][\w.]*)\s*[,)]")


def beside(facts: Facts, found: Cause | None) -> Cause | None:
    """Return ``found``, training that ran away, with the exchange that is to be looked at before the learning rate."""
    lines = () if facts.compared is None else facts.compared.exchanged
    if found is None or found.slug not in _RAN_AWAY or not lines:
        return found
    place, _, text = lines[0].partition(": ")
    told = f"Between updates the script itself exchanges weights, or what is as large, in {place}: {text}"
    sums = _SUM.search(text)
    first = Suggestion(
        f"Look at {place} first, and at what it leaves in the weights: a sum over ranks that is not divided by their "
        "number multiplies them each time, and what several ranks pull at one copy adds up.",
        None if sums is None else f"{text}\n{sums['given']} /= {sums['module']}.get_world_size()",
    )
    rest = tuple(
        replace(one, text=f"If it grows without that exchange too: {one.text[:1].lower()}{one.text[1:]}")
        for one in found.suggestions[:1]
    )
    # That gradients grew says what happened, and blames no rate.
    return Cause(
        "gradient_explosion", (*found.evidence, told), (first, *rest), found.strength, story=found.story, leads=True
    )

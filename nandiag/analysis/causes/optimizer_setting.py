"""A setting of the optimizer, beside its learning rate, by which weights grow whatever the gradients (reader side)."""

from __future__ import annotations

import math

from nandiag.analysis.causes.course import Course, courses
from nandiag.analysis.causes.divergence import is_elsewhere, until
from nandiag.analysis.causes.facts import PROVEN, Cause, Facts
from nandiag.analysis.causes.mends.steps import rates
from nandiag.analysis.causes.overflow import overflows
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import Setting, words

EXPLAIN = Explanation(
    slug="optimizer_setting",
    what="A setting of the optimizer other than its learning rate made each update larger than the one before: a "
    "momentum of 1 or more, or a weight decay so large that, times the learning rate, it turns weights round and makes "
    "them grow. A phase or a cycle that sets it anew, or a number in percent, are the usual ones.",
    looks=(
        "error[optimizer_setting]: +Inf born on ranks 0-1 at step 40 in the loss code",
        (
            "The weight_decay went from 0 to 15 by the update of step 20: at a learning rate of 0.2 each update "
            "multiplies weights by -2."
        ),
    ),
    fix=(
        Suggestion(
            "Keep the momentum below 1.",
            'group["momentum"] = min(group["momentum"], 0.99)',
        ),
        Suggestion(
            "Keep the weight decay far below one over the learning rate; 0 to 0.1 is usual.",
            "torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)",
        ),
    ),
    pages=(
        "generated/torch.optim.SGD.html",
        "generated/torch.optim.AdamW.html",
    ),
)
_STARTS = {"init", "data", "checkpoint"}
# Whose weights are multiplied by 1 - lr * weight_decay in each update; of Adam the decay goes the way of a gradient.
_DECAY_WEIGHTS = frozenset({"SGD", "AdamW", "ASGD"})
# Beyond it the factor is below -1: weights change their sign in each update, and grow.
_TURNS_ROUND = 2.0
_DECAYS = frozenset({"weight_decay"})
_UNUSUAL = 1.0
_SUM_UP = frozenset({"SGD", "RMSprop"})


def explain(facts: Facts) -> Cause | None:
    """Name a momentum of 1 or more, or a decay by which weights turn round, where the run had run away by it."""
    bad = bad_setting(facts)
    if bad is not None and facts.in_update and facts.finite_inputs:
        return _none(bad)
    if facts.compared is None or is_elsewhere(facts, _STARTS):
        return None
    found = courses(facts.history, *until(facts))
    course = found[0] if found else None
    if course is None or not (course.ran_away or overflows(facts)):
        return None
    momenta = {one.group: one.now for one in facts.compared.settings if one.name == "momentum"}
    for setting in facts.compared.settings:
        cause = _momentum(facts, course, setting) or _decay(facts, course, setting, momenta.get(setting.group, 0.0))
        if cause is not None:
            return cause
    return None


def _momentum(facts: Facts, course: Course, setting: Setting) -> Cause | None:
    most = max(setting.now, setting.most or 0.0)
    if setting.name != "momentum" or _by(facts) not in _SUM_UP or not 1.0 <= most < math.inf:
        return None
    text = f"{_went(setting, most)}: from 1 on the sum of the gradients never fades, and each update adds to it."
    return _cause(course, text, _mend(setting, "Keep the momentum below 1.", "min({}, 0.99)"))


def _decay(facts: Facts, course: Course, setting: Setting, momentum: float) -> Cause | None:
    """A usual decay turns weights round only at a rate that would be too high without it, too."""
    rate, decay = setting.rate or 0.0, setting.now
    if setting.name not in _DECAYS or _by(facts) not in _DECAY_WEIGHTS or course.rate_rose:
        return None
    if not (_UNUSUAL <= decay < math.inf and rate * decay > _TURNS_ROUND * (1.0 + max(momentum, 0.0))):
        return None
    how = f"each update multiplies weights by {words.number(1.0 - rate * decay)}"
    how = f"and a momentum of {words.number(momentum)} each update turns weights round" if momentum else how
    mend = "Keep the weight decay far below one over the learning rate; 0 to 0.1 is usual."
    at = f"at a learning rate of {words.number(rate)} {how}"
    return _cause(course, f"{_went(setting, decay)}: {at}.", _mend(setting, mend))


def _by(facts: Facts) -> str | None:
    return facts.harm.optimizer if facts.harm is not None else None


def _went(setting: Setting, most: float) -> str:
    of = f" of group {setting.group}" if setting.group else ""
    if setting.before is None or setting.step is None:
        return f"The {setting.name}{of} is {words.number(setting.now)}"
    if setting.changes == 1:
        before, now = words.number(setting.before), words.number(setting.now)
        return f"The {setting.name}{of} went from {before} to {now} by the update of step {setting.step}"
    return f"The {setting.name}{of}, at first {words.number(setting.first)}, went up to {words.number(most)}"


def _mend(setting: Setting, text: str, bound: str | None = None) -> Suggestion:
    """Say where it is set, where the script's text tells."""
    if not setting.set_at:
        code = None if bound is None else f'group["{setting.name}"] = ' + bound.format(f'group["{setting.name}"]')
        return Suggestion(text, code)
    return Suggestion(f"{text} {rates.set_at(setting.set_at)}")


def _cause(course: Course, text: str, mend: Suggestion) -> Cause:
    grown = (course.grown(),) if course.ran_away else ()
    return Cause("optimizer_setting", (text, *grown), (mend,), PROVEN, story=True)


def bad_setting(facts: Facts) -> Setting | None:
    """Return the setting beside the learning rate that is NaN or infinite now."""
    known = () if facts.compared is None else facts.compared.settings
    return next((one for one in known if not math.isfinite(one.now)), None)


def _none(bad: Setting) -> Cause:
    before = "" if bad.before is None or bad.step is None else f"; it was {bad.before:.4g} before step {bad.step}"
    lines = f" {rates.set_at(bad.set_at)}" if bad.set_at else ""
    mend = Suggestion(f"Look at what gives {bad.name} its value.{lines}")
    return Cause("optimizer_setting", (f"{bad.name} is {words.number(bad.now)}{before}",), (mend,), PROVEN, story=True)

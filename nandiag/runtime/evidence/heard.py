"""Bad data that no op of torch's made, and a place in the script that numpy warned of shortly before (worker)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nandiag.events import Looked, Site, TensorFact
from nandiag.runtime.births.known import OUTSIDE
from nandiag.runtime.collectives.objects.arrived import AHEAD, OBJECTS
from nandiag.runtime.evidence.explain import site_of
from nandiag.runtime.evidence.op import Spot
from nandiag.runtime.frames import Frame, best
from nandiag.runtime.numeric.ended import ends
from nandiag.runtime.numeric.fed import began
from nandiag.runtime.numeric.lineage import Line, leads, lines_of
from nandiag.runtime.numeric.warned import BEFORE, HEARD, Heard

if TYPE_CHECKING:
    from nandiag.runtime.evidence.data.samples.refetch import Fetched

_NUMBERS = ("arg0", "arg1", "arg2", "arg3", "value", "alpha")
_SOURCES = frozenset({"input", "outside"})
# What is known of where the values came from, and nearer than a warning.
_KNOWN = ("birth", "written_in_place")
_CAME = frozenset({"came_in", "brought", "by_object"})
_OF_BIRTH = frozenset({"birth", "call"})
_MOST_TOLD = 4
_ASKED_AGAIN = "numpy complained there when this sample was asked for again, and what it made there was not looked at"
_MAKE_INFINITIES = ("divide by zero", "overflow")


def with_heard(looked: Looked, laid: Callable[[Heard], bool] = lambda _: True) -> Looked:
    """Return ``looked``, or the line that numpy warned of where what came from outside may have come from there.

    ``laid`` tells what is known besides of whether it may.
    """
    if looked.facts.get("birth") == OUTSIDE:
        return taken_with_heard(looked)
    number = looked.source == "op" and any(not math.isfinite(one) for one in numbers_in(looked))
    brought = looked.source in _SOURCES or looked.facts.get("brought") is True
    if not (brought or number) or any(looked.facts.get(name) is not None for name in _KNOWN):
        return _arrived(looked) if _is_taken_in(looked) else looked
    if looked.facts.get("dataset_index") is not None and not (_came_before(looked) or _is_held(looked)):
        return looked
    able = [one for one in HEARD.all() if laid(one) and _can_make(one, looked) and _can_come(one, looked)]
    found = _likeliest_first(_begun(_places(looked, able)), looked)
    frames = tuple(map(Frame._make, found[0].places)) if found else ()
    if best(frames) is None:
        return _with_only(_arrived(looked), able)
    site = site_of(Spot(None, None, frames, "data", 0), None)
    lines = list(dict.fromkeys(map(_line, found)))
    alone = len({one.places[0][:2] for one in found if _line(one) == lines[0]}) == 1
    return replace(
        looked,
        method="tape",
        source="op",
        phase=looked.phase if number else "data",
        site=site if alone else replace(site, column=None),  # which of the places on the line is not known
        inputs=(),
        outputs=looked.outputs if number else looked.inputs,
        facts={
            **{name: fact for name, fact in looked.facts.items() if name != "brought"},
            "numpy": found[0].said,
            "heard": True,
            "number": number,
            **({"heard_before": True} if found[0].step == BEFORE else {}),
            **({"heard_also": lines[1:_MOST_TOLD]} if lines[1:] else {}),
        },
        reason=f"numpy complained there {_when(looked.step, found[0].step)}, and what it made there was not looked at",
    )


def _with_only(looked: Looked, heard: list[Heard]) -> Looked:
    """Return ``looked`` with the only line that numpy ever complained of, however long ago: to be told, not blamed.

    What a memory of the script's kept (of transitions, say), or a table of rates, is used at any time. Of several lines
    the one that the text shows to lead to an update is told of a number that the update was given.
    """
    setting, led = looked.phase == "optimizer", {}
    if setting and len({_line(one) for one in heard} - {""}) > 1:
        heard = [one for one in heard if leads(lines_of(one.places), _used_at(looked))]
        led = {"heard_led": True}
    lines = {_line(one) for one in heard} - {""}
    usual = any(one.steps > 1 and _is_usual(one, looked.step) for one in heard)
    if len(lines) != 1 or not (looked.source in _SOURCES or setting) or usual:
        return looked
    only = [lines.pop(), heard[-1].said, _when(looked.step, heard[-1].step)]
    return replace(looked, facts={**looked.facts, "heard_only": only, **led})


def taken_with_heard(born: Looked) -> Looked:
    """Return ``born``, or the line that numpy warned of where torch took the bad values as it was given them."""
    if born.facts.get("birth") != OUTSIDE:
        return born
    facts = {name: fact for name, fact in born.facts.items() if name not in _OF_BIRTH}
    heard = with_heard(replace(born, inputs=born.outputs[-1:], facts={**facts, **came_in(born.site)}))
    if heard.facts.get("heard") is not True:
        return born
    return _as_weight(heard, born) if "weight" in born.facts else heard


def _as_weight(heard: Looked, born: Looked) -> Looked:
    """Return what was ``heard`` of a weight, or a buffer, that was ``born`` bad: it is told of as one."""
    site, owner = heard.site or Site(), born.site or Site()
    site = replace(site, module=owner.module, module_class=owner.module_class)
    return replace(heard, phase=born.phase, site=site, facts={**heard.facts, "birth": OUTSIDE})


def is_maker(heard: Heard, step: int, at: Sequence[Line]) -> bool:
    """Whether numpy made an infinity of finite numbers there in this step, which may have come to the lines ``at``.

    Not where it does so all the time: a mask is computed like that.
    """
    made = heard.step == step and not heard.fed and heard.said.startswith(_MAKE_INFINITIES)
    if not made or _is_usual(heard, step) or ends([Frame._make(one) for one in heard.places]):
        return False
    return leads(lines_of(heard.places), at) is not False


def as_beside(looked: Looked) -> Looked:
    """Return a place that a further run found, as one ``beside`` the origin where numpy was heard: it ran before."""
    heard = looked.facts.get("heard") is True
    return replace(looked, facts={**looked.facts, "beside": True}) if heard else looked


def came_in(site: Site | None) -> dict[str, object]:
    """Return the line by which the values came into torch, as a fact, where it is known."""
    return {} if site is None or site.file is None else {"came_in": f"{site.file}:{site.line}"}


def in_numpy(fetched: Fetched, looked: Looked, bad: TensorFact) -> Looked:
    """Return ``looked``, as the dataset's own arithmetic in numpy made the sample ``bad``, now or when it was made."""
    known = replace(looked, phase="data", source="op", outputs=(bad,))
    if fetched.numpy is not None:
        said, frames = fetched.numpy.said, fetched.numpy.frames
        site = site_of(Spot(None, None, frames, "data", 0), None)
        site = site if fetched.numpy.alone else replace(site, column=None)
        facts = {**looked.facts, "numpy": said, **fetched.numpy.squared}
        if not fetched.numpy.also:
            return replace(known, site=site, facts=facts)
        facts["heard_also"] = list(fetched.numpy.also)
        return replace(known, method="tape", site=site, facts=facts, reason=_ASKED_AGAIN)
    if fetched.made is None:
        return looked
    reason = "numpy complained there when this sample was made; asked for again, it did not come out bad"
    facts = {**looked.facts, "numpy": fetched.made.said, "made_once": True}
    return replace(known, method="tape", site=fetched.made.site, facts=facts, reason=reason)


def _is_taken_in(looked: Looked) -> bool:
    """Whether torch made a tensor of Python's numbers there, as it was given them: in a list, say."""
    return looked.source == "op" and looked.site is not None and looked.site.op == "aten.lift_fresh.default"


def _arrived(looked: Looked) -> Looked:
    """Return ``looked``, as received where such a number had come in an object of another rank's shortly before."""
    harmed = [fact for fact in looked.inputs if fact.bad and (looked.source != "op" or _is_taken_in(looked))]
    nan = any(fact.nan for fact in harmed) or any(map(math.isnan, numbers_in(looked)))
    message = None if _CAME & looked.facts.keys() else OBJECTS.of(looked.step, harmed, nan=nan)
    if message is None:
        return looked
    return replace(looked, source="received", facts={**looked.facts, **message.facts(), "by_object": True})


def _places(looked: Looked, heard: list[Heard]) -> list[Heard]:
    """Return the newest places that numpy complained of shortly before.

    What is known to come from before the first step may be used at any time, and what a dataset holds at any time since
    it was made: it is told where there is no other line.
    """
    if _is_held(looked):
        heard = _as_it_was_made(heard, looked)
    came = _came_before(looked) or _is_held(looked)
    if came and not _is_held(looked):
        heard = [one for one in heard if one.first == BEFORE]
    near = [one for one in heard if looked.step - AHEAD <= one.step <= looked.step and not _is_usual(one, looked.step)]
    if near or not came:
        return [one for one in near if one.step == near[-1].step]
    return heard if len({_line(one) for one in heard}) == 1 else []


def _begun(found: list[Heard]) -> list[Heard]:
    """Return the places without those that only went on with what was bad, where another began it."""
    return began([(one, best(tuple(map(Frame._make, one.places))), one.fed) for one in found])


def _as_it_was_made(heard: list[Heard], looked: Looked) -> list[Heard]:
    """Return the places that a dataset's own memory may have been made at: not those of what it is asked for.

    Had it been made of what torch took before the first step, that were known. Of several times none is.
    """
    outside = [one for one in heard if not one.fetching]
    before = [one for one in outside if one.first == BEFORE]
    since = [one for one in outside if one.first != BEFORE]
    chosen = (before or since) if _came_before(looked) else (since or before)
    return chosen if len({one.first for one in chosen}) == 1 else []


def _is_held(looked: Looked) -> bool:
    return looked.facts.get("held") is True


def _came_before(looked: Looked) -> bool:
    """Whether the values are known to come from before the first step."""
    return looked.facts.get("came_in") is not None or looked.facts.get("brought") is True


def _is_usual(heard: Heard, step: int) -> bool:
    """Whether numpy has complained of this place for long, again and again, and training went on."""
    return heard.first < step - AHEAD and heard.steps * 4 > heard.step - heard.first


def _line(heard: Heard) -> str:
    frame = best(tuple(map(Frame._make, heard.places)))
    return "" if frame is None else f"{frame.file}:{frame.line}"


def _can_make(heard: Heard, looked: Looked) -> bool:
    """NaN comes of anything, of an infinity too; an infinity does not come of what is invalid."""
    nan = any(fact.nan for fact in looked.inputs) or any(map(math.isnan, numbers_in(looked)))
    return nan or not heard.said.startswith("invalid")


def _likeliest_first(found: list[Heard], looked: Looked) -> list[Heard]:
    """Return the places with those ahead that make NaN at once, where all that is bad is NaN.

    An infinity that was made before may be what the arithmetic there went wrong with, unless the text rules it out.
    """
    if any(fact.posinf or fact.neginf for fact in looked.inputs) or any(map(math.isinf, numbers_in(looked))):
        return found
    others = [one for one in found if one.said.startswith(_MAKE_INFINITIES)]
    made = [one for one in found if one not in others]
    made = [one for one in made if all(leads(lines_of(at.places), lines_of(one.places)) is False for at in others)]
    return made + [one for one in found if one not in made]


def _can_come(heard: Heard, looked: Looked) -> bool:
    """Whether the text does not rule out that what came in is what was made there: only printed, say."""
    if ends([Frame._make(one) for one in heard.places]):
        return False
    return leads(lines_of(heard.places), _used_at(looked)) is not False


def _used_at(looked: Looked) -> list[Line]:
    """Return the line by which the values came into torch, else that of the look."""
    came, site = looked.facts.get("came_in"), looked.site
    file, _, line = str(came).rpartition(":")
    if isinstance(came, str) and line.isdigit():
        return [(file, int(line))]
    return [(site.file, site.line)] if site is not None and site.file and site.line else []


def numbers_in(looked: Looked) -> list[float]:
    """Return the numbers of Python's that the op of a look was given."""
    return [one for name in _NUMBERS if isinstance(one := looked.facts.get(name), float)]


def _when(step: int, heard: int) -> str:
    if heard == BEFORE:
        return "before the first step"
    steps = step - heard
    return "in this step" if steps == 0 else f"{steps} {'step' if steps == 1 else 'steps'} before"

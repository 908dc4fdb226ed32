"""Who sent what was received: the look of a rank that handed bad values on is put where they did harm (reader side).

A rank that only sends sees no harm, and may be steps ahead by then. What it sent counts only where another rank's look
at a harmful step says that this very message brought the harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nandiag.analysis.timeline import Seen, Timeline
from nandiag.analysis.ways.alone import with_only_way
from nandiag.analysis.ways.carried import line_of_call
from nandiag.analysis.ways.filled import with_filled
from nandiag.events import Looked, Sent, words

Key = tuple[object, ...]
_ONLY = frozenset({"only_way", "only_since"})


def with_senders(timeline: Timeline) -> Timeline:
    """Return the timeline with a look of each rank that sent what a look of another rank received."""
    timeline = with_filled(with_only_way(timeline))
    sent: dict[Key, list[Seen[Sent]]] = {}
    for one in timeline.sent:
        sent.setdefault((one.attempt, *_key_of(one.event)), []).append(one)
    timeline = replace(timeline, looks=tuple(_with_line(one, sent) for one in timeline.looks)) if sent else timeline
    found = [own for one in timeline.looks for own in _behind(one, sent, timeline.looks)] if sent else []
    if not found:
        return timeline
    led = {(one.rank, one.attempt, one.event.step) for one in found}
    known = (one for one in timeline.looks if not _is_met(one) or (one.rank, one.attempt, one.event.step) not in led)
    every = sorted(
        (*known, *(_with_line(one, sent) for one in _once(found))),
        key=lambda one: (one.attempt, one.event.step, one.rank, one.seq),
    )
    return replace(timeline, looks=tuple(every))


def _with_line(received: Seen[Looked], sent: dict[Key, list[Seen[Sent]]]) -> Seen[Looked]:
    """Return a look with the line at which the message that brought it was given, where a rank told that."""
    key = None if "called_in" in received.event.facts else _key(received.event)
    told = sent.get((received.attempt, *key), ()) if key is not None else ()
    line = next((line for one in told if (line := line_of_call(one.event.site, one.event.way))), None)
    line = line or _only_line(received, sent)
    if line is None:
        return received
    return replace(received, event=replace(received.event, facts={**received.event.facts, "called_in": line}))


def _only_line(received: Seen[Looked], sent: dict[Key, list[Seen[Sent]]]) -> str | None:
    """Return the line that sent a rank all that was bad in the step, of a message of which only its two ends are known.

    So it is where a replay of all ranks counted its messages, and not those of the run.
    """
    facts = received.event.facts
    ends, at = facts.get("group_ranks"), (received.attempt, received.event.step)
    if facts.get("carried_by") not in _MESSAGES or not isinstance(ends, list) or "called_in" in facts:
        return None
    every = (one for many in sent.values() for one in many)
    near = [one.event for one in every if (one.attempt, one.event.look.step) == at]
    lines = {line_of_call(one.site, one.way) for one in near if one.way == "send" and list(one.ranks) == ends}
    return next(iter(lines)) if len(lines) == 1 else None


_MESSAGES = frozenset({"send", "recv"})


def _once(found: Iterable[Seen[Looked]]) -> list[Seen[Looked]]:
    """Return one look for each rank and step, which tells all that were sent what the rank then sent by itself."""
    groups: dict[tuple[int, int, int], list[Seen[Looked]]] = {}
    for one in found:
        groups.setdefault((one.attempt, one.rank, one.event.step), []).append(one)
    return [_to_all(many) for many in groups.values()]


def _to_all(many: list[Seen[Looked]]) -> Seen[Looked]:
    last = many[-1]
    receivers = sorted({to for one in many if (to := _receiver(one.event)) is not None})
    if not receivers[1:]:
        return last
    return replace(last, event=replace(last.event, facts={**last.event.facts, "handed_to": receivers}))


def _behind(
    received: Seen[Looked], sent: dict[Key, list[Seen[Sent]]], looks: tuple[Seen[Looked], ...]
) -> list[Seen[Looked]]:
    """Return the looks of the senders on the way back from one look, nearest first."""
    step, found, waiting = received.event.step, [], [received]
    only = {name: fact for name, fact in received.event.facts.items() if name in _ONLY}
    at = [one for one in looks if (one.attempt, one.event.step) == (received.attempt, step)]
    ranks, met = {one.rank for one in at}, {one.rank for one in at if _is_met(one)}
    told = {one.rank for one in at if one.event.outcome == "found" and not _is_met(one, received=True)}
    while waiting:
        key = _key(waiting.pop().event)
        for one in sent.get((received.attempt, *key), ()) if key is not None else ():
            look = _led_back(one, sent)
            if one.rank in told or (one.rank in met and look.source != "op"):
                continue
            told.add(one.rank)
            facts = {**look.facts, **only, "handed_on": list(_key_of(one.event))[:2], "own_step": look.step}
            if one.rank in ranks and look.step < step:  # it came to this step as well, and so counts alike
                facts["made_at_step"] = look.step
            found.append(Seen(one.rank, one.attempt, one.pid, one.seq, one.time, replace(look, step=step, facts=facts)))
            waiting.append(found[-1])
    return found


def _is_met(one: Seen[Looked], *, received: bool = False) -> bool:
    """Whether a look tells no more than that its rank met what was bad: it may have been this rank's own share."""
    brought = received and one.event.source == "received"
    return one.event.outcome == "found" and (one.event.source == "outside" or brought)


def _led_back(one: Seen[Sent], sent: dict[Key, list[Seen[Sent]]]) -> Looked:
    """Return the look at what a rank gave; of what was seen only as it went that at what it gave before in the step."""
    look = one.event.look
    if look.method != "message" or look.facts.get("by_object") is True:
        return look
    every = (other for many in sent.values() for other in many)
    before = [
        other for other in every if (other.rank, other.attempt) == (one.rank, one.attempt) and other.seq < one.seq
    ]
    own = (other.event.look for other in sorted(before, key=lambda other: other.seq))
    made = next(
        (other for other in own if (other.step, other.outcome, other.source) == (look.step, "found", "op")), None
    )
    return look if made is None else replace(made, facts={**made.facts, "gave_before": True})


def _key(look: Looked) -> Key | None:
    """Return which message brought what a look received, or made NaN of (``fed``); None where it is not known."""
    brought = look.source == "received" or look.facts.get("fed") is True
    handed = look.facts.get("handed") if brought else None
    if not isinstance(handed, list) or len(handed) != 4 or not isinstance(handed[1], list):
        return None
    return handed[0], tuple(handed[1]), handed[2], handed[3]


def _key_of(sent: Sent) -> Key:
    return sent.way, sent.ranks, sent.number, sent.group


def given_of(look: Looked, alike: Iterable[Looked] = ()) -> str:
    """Return in words what a rank handed on, of a look of :func:`with_senders`, and other ranks ``alike``."""
    handed = look.facts.get("handed_on")
    way = handed[0] if isinstance(handed, list) and len(handed) == 2 else None
    others = [one for one in alike if one is not look]
    whose = "they" if others else "it"
    receivers = {to for one in (look, *others) for to in _receivers(one)}
    if way == "send" and receivers:
        return f"what {whose} sent to {words.ranks(receivers)}"
    return f"what {whose} gave to other ranks" + (f" ({way})" if isinstance(way, str) else "")


def _receivers(look: Looked) -> list[int]:
    known = look.facts.get("handed_to")
    own = _receiver(look)
    return [to for to in known if isinstance(to, int)] if isinstance(known, list) else [] if own is None else [own]


def _receiver(look: Looked) -> int | None:
    handed = look.facts.get("handed_on")
    ranks = handed[1] if isinstance(handed, list) and len(handed) == 2 and handed[0] == "send" else None
    return ranks[-1] if isinstance(ranks, list | tuple) and ranks and isinstance(ranks[-1], int) else None

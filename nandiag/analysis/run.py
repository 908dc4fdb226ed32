"""What frames the verdict: the run, the history of the ranks that matter, what could not be seen (reader side)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, replace

from nandiag.analysis.ranks import crashed_late, last_logs, world_of
from nandiag.analysis.report import Origin, RankState, Run, Verdict
from nandiag.events import Activations, Armed, Attached, Finished, Harm, History, Looked, Note, ProbeDark, words
from nandiag.store.reader import RankLog, RunRecord

MAX_HISTORY_RANKS = 8
MAX_HISTORY_STEPS = 1_000
MAX_NOTES = 100
VERSIONS = ("nandiag", "torch", "python", "nccl", "cuda", "driver")
_OF_BAD_STATE = "the optimizer's state was bad before this update"
_REFUSED = "could not be run again"
_ANOTHER = ": another rank could not run the step again"
_STATES = ("stopped", "signalled", "failed", "running", "succeeded")


def run_of(record: RunRecord) -> Run:
    """Return what was run and how it ended, from the launchers' files and the ranks' handshakes."""
    info = record.info
    attached = [event for log in record.logs if (event := log.attached) is not None]
    state = min((agent.state for agent in record.agents), key=_worse, default="unfinished")
    if record.stopped and not record.agents:
        state = "stopped"
    if record.lost and state == "succeeded" and info is not None and info.nnodes is not None:
        state = "unfinished"  # where the number of nodes is a range, those that are left may carry a run to its end
    codes = [agent.exit_code for agent in record.agents]
    return Run(
        id=info.id if info else None,
        command=info.command if info else (),
        started=info.started if info else None,
        nproc=info.nproc if info else None,
        nnodes=info.nnodes if info else None,
        world_size=world_of(record, last_logs(record.logs)) or None,
        hosts=tuple(dict.fromkeys([event.host for event in attached] + ([info.host] if info and info.host else []))),
        versions=_versions(record, attached),
        policy=info.policy if info else None,
        exit_code=3 if 3 in codes else max(codes, default=None),
        state=state,
    )


def _worse(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _versions(record: RunRecord, attached: list[Attached]) -> dict[str, str | None]:
    known: dict[str, str | None] = dict.fromkeys(VERSIONS)
    known.update(record.info.versions if record.info else {})
    armed = next((one.event for log in record.logs for one in log.records if isinstance(one.event, Armed)), None)
    told: dict[str, str | None] = {}
    if attached:
        told.update(nandiag=attached[0].nandiag, python=attached[0].python)
    if armed is not None:
        told.update(torch=armed.torch, cuda=armed.cuda, nccl=armed.nccl, driver=armed.driver)
    return {**known, **{name: text for name, text in told.items() if text}}


def with_sender(verdict: Verdict, record: RunRecord) -> Verdict:
    """Return the verdict with the line from which it was sent, where it tells by which call something came here."""
    for at, text in enumerate(verdict.evidence):
        known = _CAME.search(text)
        place = None if known is None or verdict.origin is None else _sent_at(verdict.origin, known, record)
        if known is not None and place is not None:
            told = f"{text}; rank {known[1]} sent it {place}"
            return replace(verdict, evidence=(*verdict.evidence[:at], told, *verdict.evidence[at + 1 :]))
    return verdict


_CAME = re.compile(r" came from rank (\d+), by the (recv|irecv|broadcast|scatter)\b")
_SENDS = {"recv": ("send", "isend"), "irecv": ("send", "isend")}


def _sent_at(origin: Origin, came: re.Match[str], record: RunRecord) -> str | None:
    """Return the one line of the sender's script that makes such calls to the origin's ranks, as far as it is known."""
    log = last_logs(record.logs).get(int(came[1]))
    calls = () if log is None or log.standing is None else log.standing.calls
    ops = _SENDS.get(came[2], ())
    of = [one for one in calls if (one.op == came[2] and not ops) or (one.op in ops and one.peer in origin.ranks)]
    places = {(one.place.file, one.place.line) for one in of if one.place is not None}
    if len(places) != 1 or any(one.place is None for one in of):
        return None
    ((file, line),) = places
    return f"in line {line}" if file == origin.file else f"at {words.place([file, line])}"


def history_of(record: RunRecord, matter: Iterable[int]) -> dict[str, History]:
    """Return the newest history of the ranks that matter, lowest first, bounded in ranks and steps."""
    logs = last_logs(record.logs)
    found: dict[str, History] = {}
    for rank in sorted(set(matter))[:MAX_HISTORY_RANKS]:
        newest = newest_history(record, logs.get(rank))
        if newest is not None:
            found[str(rank)] = newest
    return found


def newest_history(record: RunRecord, log: RankLog | None) -> History | None:
    """Return the last history that this worker wrote, cut to the newest steps."""
    last = record.history(log) if log is not None else None
    if last is None:
        return None
    cut = slice(-MAX_HISTORY_STEPS, None)
    return History(**{one.name: getattr(last, one.name)[cut] for one in fields(History)})


def activations_of(record: RunRecord, matter: Iterable[int]) -> dict[str, Activations]:
    """Return the newest history of activation maxima of the ranks that matter, lowest first, bounded in ranks."""
    logs = last_logs(record.logs)
    found: dict[str, Activations] = {}
    for rank in sorted(set(matter))[:MAX_HISTORY_RANKS]:
        records = logs[rank].records if rank in logs else ()
        events = [one.event for one in records if isinstance(one.event, Activations)]
        if events:
            found[str(rank)] = events[-1]
    return found


def notes_of(record: RunRecord, states: dict[int, RankState]) -> tuple[str, ...]:
    """Return what could not be seen, and why; the same words of several ranks once."""
    said: dict[str, set[int]] = {}
    for log in record.logs:
        for text in (*log.notes, *_own_notes(log)):
            said.setdefault(text, set()).add(log.rank)
    for text in _idle(record, said):
        del said[text]
    texts = [*_missing(record, states), *(f"{_capital(words.ranks(ranks))}: {text}" for text, ranks in said.items())]
    texts += record.notes
    left = len(texts) - MAX_NOTES
    return tuple(texts[:MAX_NOTES]) + ((f"{left} more notes were left out.",) if left > 0 else ())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _idle(record: RunRecord, said: dict[str, set[int]]) -> list[str]:
    """Return the notes that a step was not run again for another rank's sake, where that is said or not missed."""
    looks = [one.event for log in record.logs for one in log.records if isinstance(one.event, Looked)]
    found = {look.step for look in looks if look.outcome == "found"}
    others = [text for text in said if _REFUSED in text and not text.endswith(_ANOTHER)]
    return [
        text
        for text in said
        if text.endswith(_ANOTHER)
        and (any(text.startswith(f"step {step} ") for step in found) or any(_same(text, one) for one in others))
    ]


def _same(text: str, other: str) -> bool:
    return text.partition(_REFUSED)[0] == other.partition(_REFUSED)[0]


def _own_notes(log: RankLog) -> Iterable[str]:
    armed = broken = False
    looks = [one.event for one in log.records if isinstance(one.event, Looked)]
    found = {look.step for look in looks if look.outcome == "found"}
    for one in log.records:
        event = one.event
        armed |= isinstance(event, Armed)
        if isinstance(event, Note):
            yield event.text
        elif isinstance(event, ProbeDark):
            broken |= event.probe == "arm"
            at = "" if event.step is None else f" at step {event.step}"
            yield f"the probe {event.probe} was switched off{at}: {event.reason}"
        elif isinstance(event, Looked) and event.outcome in {"failed", "refused"} and event.step not in found:
            why = event.reason or "no reason was given"
            if why == _OF_BAD_STATE:
                yield f"the update of step {_step_of(event, log)} was not made again: its state was bad before it."
                continue
            done = _REFUSED if event.method != "watch" else "was watched, but its origin was not seen"
            yield f"step {_step_of(event, log)} {done}: {why}"
    if log.attached is not None and not armed and broken:
        yield "nothing was watched there."
    elif log.attached is not None and not armed and not log.notes:  # what the file lost may have said otherwise
        yield "torch was never imported there, so nothing was watched."


def _step_of(look: Looked, log: RankLog) -> int:
    """Return the step of a look: one that is had as the script ends is of the last step that was made."""
    over = any(isinstance(one.event, Finished) and one.event.steps == look.step > 0 for one in log.records)
    harmed = any(isinstance(one.event, Harm) and one.event.step == look.step for one in log.records)
    return look.step - 1 if look.method == "watch" and over and not harmed else look.step


def _elsewhere(record: RunRecord, states: dict[int, RankState]) -> set[int]:
    """Return the ranks that no launcher of these folders started, where there are launchers without a folder here."""
    info = record.info
    if info is None or (
        info.launcher != "none" and max(len(record.agents), len(record.starts), 1) >= (info.nnodes or 1)
    ):
        return set()
    started = {end.rank for agent in record.agents for end in agent.ranks}
    return {rank for rank, state in states.items() if not state.attached and rank not in started}


def _missing(record: RunRecord, states: dict[int, RankState]) -> Iterable[str]:
    elsewhere = _elsewhere(record, states)
    if elsewhere:
        were = "was" if len(elsewhere) == 1 else "were"
        yield (
            f"{_capital(words.ranks(elsewhere))} of {len(states)} {were} started by another launcher, which has a run "
            "folder of its own: `nandiag report FOLDER FOLDER` joins them."
        )
    absent = [rank for rank, state in states.items() if not state.attached and rank not in elsewhere]
    if absent:
        # Without the word of a launcher, what is missing may as well have been deleted.
        why = "not attached, or the files are gone" if record.agents else "no file of theirs is in the folder"
        yield (
            f"{_capital(words.ranks(absent))} of {len(states)} left no word: {why}, "
            "so nothing is known of what happened there."
        )
    silent = [rank for rank, state in states.items() if state.state == "unfinished"]
    if silent:
        yield f"{_capital(words.ranks(silent))}: no end was written; still running, or lost without a trace."
    for agent in record.lost:
        yield f"The launcher on {agent.host} (pid {agent.pid}) is gone without an end: killed, or its node went down."
    over = {agent.name for agent in record.agents} | {agent.name for agent in record.lost}
    late = {agent.name for agent in record.starts} - over
    if record.agents and late:
        yield f"{words.count(len(late), 'launcher')} had not ended when this was read ({', '.join(sorted(late)[:4])})."
    for signal, ranks in crashed_late(states).items():
        yield (
            f"{_capital(words.ranks(ranks))}: ended by {words.signal_name(signal)} while Python shut down, after the "
            "script had ended; torchrun counts that as a failure."
        )
    attempts = {log.attempt for log in record.logs}
    if len(attempts) > 1:
        yield f"The workers were started {max(attempts) + 1} times; the ranks are shown as the last start left them."

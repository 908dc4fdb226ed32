"""Watching a run from outside: one line the moment harm is found, and an end for workers that miss a stop (launcher).

:class:`Seen` is what the rank files said so far, :class:`Watch` the daemon thread that follows them.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nandiag.events import (
    Attached,
    Event,
    Finished,
    Harm,
    Listening,
    Looked,
    Raised,
    Record,
    Sent,
    Site,
    Stopping,
    Warned,
)
from nandiag.events.visible import clean
from nandiag.events.words import bad_kind, by_numpy, made_kind, module, op, ranks
from nandiag.launch.hang import HangWatch, Workers, waited_in_vain
from nandiag.launch.nodes import presence
from nandiag.store.layout import RunFolder
from nandiag.store.reader import RankLog
from nandiag.store.run import HangEnd
from nandiag.store.tail import Fresh, Tail

POLL_SECONDS = 0.25
WAIT_SECONDS = 1.0
# With more workers than this only the report tells who waited for whom: it reads all of their files.
MOST_WAITING = 256
_MOST_TOLD = 64


@dataclass(frozen=True, slots=True)
class Grace:
    """Seconds from the first stop until workers are ended (``looking``: from the newest harm that they told of).

    ``others`` is for workers that have not noticed the stop, ``apart`` for those that never will, as the worker that
    stopped trains apart from them (torchrun gives no time at all), ``looking`` for those that told of harm and not yet
    of what their look at it showed (a rank's batch may be far longer than the others'), ``own`` for those still in
    their ``finally`` blocks, ``kill`` for the time between SIGTERM and SIGKILL. ``hang`` is not from a stop: after so
    many seconds without progress of any rank the workers are ended (0: never).
    """

    others: float = 10.0
    apart: float = 0.5
    looking: float = 120.0
    own: float = 300.0
    kill: float = 30.0
    hang: float = 0.0


@dataclass(slots=True)
class Seen:
    """What the rank files of a run said so far; keys are (rank, attempt, pid) of a worker process.

    The files may be those of several launchers: ``agent`` is the name of this one (empty: all are its own).
    ``looking`` are those that told of harm and not yet of what they found, with the number of that event. ``told`` is
    what can tell an origin, ``warned`` the first early warning of each kind, ``ended`` the pids of workers that the
    launcher itself ended because of a stop.
    """

    attached: dict[tuple[int, int, int], Attached] = field(default_factory=dict)
    finished: set[tuple[int, int, int]] = field(default_factory=set)
    stopping: set[tuple[int, int, int]] = field(default_factory=set)
    looking: dict[tuple[int, int, int], int] = field(default_factory=dict)
    told: dict[tuple[int, int, int], list[Record]] = field(default_factory=dict)
    warned: list[tuple[int, Warned]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    listening: dict[tuple[int, int, int], int] = field(default_factory=dict)
    hang: HangEnd | None = None
    raised: bool = False
    alone: bool = False
    agent: str = ""

    def take(self, fresh: Fresh) -> None:
        """Add one record."""
        key, event = (fresh.rank, fresh.attempt, fresh.pid), fresh.record.event
        self.raised |= isinstance(event, Raised)
        self._follow_harm(key, fresh.record)
        if isinstance(event, Attached):
            self.attached[key] = event
        elif isinstance(event, Finished):
            self.finished.add(key)
        elif isinstance(event, Listening):
            self.listening[key] = event.signal or 0
        elif isinstance(event, Stopping) and event.action == "stop":
            self.stopping.add(key)
            self.alone |= event.alone
        elif isinstance(event, Warned) and event.slug not in {known.slug for _, known in self.warned}:
            self.warned.append((fresh.rank, event))

    def _follow_harm(self, key: tuple[int, int, int], record: Record) -> None:
        if isinstance(record.event, Harm) and record.event.left_on:
            return  # how its process ends tells whether it is harm at all
        if isinstance(record.event, Harm | Looked | Sent) and len(self.told.setdefault(key, [])) < _MOST_TOLD:
            self.told[key].append(record)
        if isinstance(record.event, Harm):
            self.looking[key] = record.seq
        elif isinstance(record.event, Looked):
            self.looking.pop(key, None)

    @property
    def harms(self) -> list[tuple[int, Harm]]:
        """The harms with their ranks."""
        return [(rank, event) for rank, event in self._events() if isinstance(event, Harm)]

    @property
    def looks(self) -> list[tuple[int, Looked]]:
        """The looks that found something, with their ranks."""
        return [(rank, one) for rank, one in self._events() if isinstance(one, Looked) and one.outcome == "found"]

    def _events(self) -> Iterator[tuple[int, Event]]:
        return ((key[0], one.event) for key, records in self.told.items() for one in records)

    @property
    def attempts(self) -> int:
        """How often the workers were started, as far as their files tell."""
        return max((key[1] for key, worker in self.attached.items() if self._is_own(worker)), default=0) + 1

    @property
    def stopped(self) -> bool:
        """Whether a worker stopped the run: one is enough, also where elastic started the workers anew after it."""
        return bool(self.stopping)

    @property
    def last(self) -> dict[int, Attached]:
        """This launcher's workers of the last attempt by rank."""
        newest = self.attempts - 1
        return {key[0]: one for key, one in self.attached.items() if key[1] == newest and self._is_own(one)}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The launchers whose workers are known, in the order of their nodes; the newest worker of each counts."""
        ranks = {worker.agent: worker.node_rank for worker in self.attached.values() if worker.agent}
        return tuple(sorted(ranks, key=lambda agent: (ranks[agent], agent)))

    @property
    def speaks(self) -> bool:
        """Whether this launcher speaks for all that are known: it is that of the first node."""
        return not self.agent or self.nodes[:1] in ((), (self.agent,))

    def _is_own(self, worker: Attached) -> bool:
        return not self.agent or worker.agent in ("", self.agent)

    def line(self) -> str | None:
        """Return what is known of the first harm in one line; None while there is none or only a second look."""
        looks = sorted(self.looks, key=lambda pair: (pair[1].step, pair[1].source == "received", pair[0]))
        chosen = self._chosen() if looks else None
        if chosen is not None:
            return _of_look(*chosen)
        if looks:
            return _of_look(*looks[0])
        harms = sorted(self.harms, key=lambda pair: (pair[1].step, pair[0]))
        return _of_harm(*harms[0]) if harms else None

    def _chosen(self) -> tuple[int, Looked] | None:
        """Return the look that the report would choose by now: a rank that received is told from one that sent."""
        from nandiag.analysis.first import first_look  # all of analysis comes with it: not before it is needed

        return first_look(RankLog(*key, tuple(records)) for key, records in self.told.items())


def _of_look(rank: int, look: Looked) -> str:
    site = look.site
    kind = bad_kind((*look.outputs, *look.inputs)) or ("NaN" if look.method == "check" else "NaN or Inf")
    name = next((fact.name for fact in look.inputs if fact.name), None)
    where = "numpy" if look.facts.get("numpy") else "the model" if site is None else _where(site)
    if look.source == "received":
        what = _came(look, kind)
    elif look.source in ("parameter", "buffer", "input"):
        article = "an" if look.source == "input" else "a"
        what = f"{look.source} {name} is {kind}" if name else f"{article} {look.source} is {kind}"
    elif isinstance(look.facts.get("weight"), str):
        weight = [fact for fact in look.outputs if fact.name == look.facts["weight"]]
        what = f"{look.facts.get('weight_is') or 'parameter'} {look.facts['weight']} is {bad_kind(weight) or kind}"
    elif look.source == "outside":
        what = f"{kind} was read; what made it is not known yet"
    elif site is not None and op(site.op or "") == "lift_fresh" and any(fact.bad for fact in look.outputs):
        what = f"torch took {bad_kind(look.outputs)} in, from Python's numbers or numpy's"
    else:
        said = by_numpy(look.facts, look.outputs)
        made = None if any(fact.guessed for fact in look.outputs) else made_kind(look.outputs, look.inputs) or kind
        what = f"{where} made {said or made or 'NaN or Inf'}"
    if look.facts.get("birth") == "op" and look.source == "op" and not {"saved_at", "thread"} & look.facts.keys():
        return f"{ranks([rank])}, before the first step: {what}{f', used at step {look.step}' if look.step else ''}"
    return f"{ranks([rank])}, step {look.step}, {look.phase or 'phase unknown'}: {what}"


def _came(look: Looked, kind: str) -> str:
    """Return whence it came: an exchange may have made it of what was finite on all ranks, as a sum does."""
    way = look.facts.get("carried_by")
    if isinstance(way, str) and look.facts.get("sent_absmax") is not None:
        return f"{kind} came out of {way}, into which this rank put finite values"
    return f"{kind} was received from another rank"


def _where(site: Site) -> str:
    named = site.op and op(site.op)
    return module(site.module, site.module_class) or named or site.node or "the model"


_MANY = {"loss": "losses", "output": "outputs", "gradient": "gradients", "parameter": "parameters", "buffer": "buffers"}


def _of_harm(rank: int, harm: Harm) -> str:
    name = harm.tensors[0].name if harm.tensors else None
    what = harm.what.replace("_", " ")
    # Of state there are several tensors to each of the parameters, which alone are counted.
    of = "" if harm.what == "optimizer_state" else f" of {harm.total}"
    some = f" ({harm.bad}{of} {_MANY.get(harm.what, 'tensors')})" if harm.total > 1 and (of or harm.bad > 1) else ""
    join = " of " if harm.what in ("gradient", "optimizer_state") else " "
    of = f"{join}{name}" if name and name != harm.what else ""
    kind = bad_kind(harm.tensors) or "not finite"
    return f"{ranks([rank])}, step {harm.step}, {harm.phase}: {what}{of} is {kind}{some}"


class Watch:
    """The thread that follows the rank files; ``say`` gets the one line, ``kill`` ends a process."""

    def __init__(
        self,
        folder: RunFolder,
        say: Callable[[str], None],
        kill: Callable[[int, int], None] | None = None,
        grace: Grace | None = None,
    ) -> None:
        self._seen = Seen(agent=presence.name())
        self._tail = Tail(folder.ranks)
        self._folder = folder.path
        self._say, self._kill = say, kill or signal_own
        self._grace = grace or Grace()
        self._hang = HangWatch(folder, self._grace.hang, say)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="nandiag-watch", daemon=True)
        self._harm_at: float | None = None
        self._stop_at: float | None = None
        self._said = False
        self._raised_at: float | None = None
        self._warned = 0
        self._signalled: dict[int, float] = {}
        self._looking: dict[tuple[tuple[int, int, int], int], float] = {}
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def end(self) -> Seen:
        """Stop following, read what is left and return all that was seen."""
        self._over.set()
        self._thread.join(timeout=10)
        self._guard(lambda: self._turn(time.monotonic(), last=True))
        return self._seen

    def _follow(self) -> None:
        pause = POLL_SECONDS
        while not self._over.wait(pause):
            began = time.monotonic()
            self._guard(lambda now=began: self._turn(now))  # type: ignore[misc]
            # On a slow file system the looking itself must stay a small part of the time.
            pause = max(POLL_SECONDS, 20 * (time.monotonic() - began))
            if self.failure is not None:
                return

    def _guard(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception as error:  # noqa: BLE001 - watching must never end the run that it watches
            self.failure = error

    def _turn(self, now: float, *, last: bool = False) -> None:
        for fresh in self._tail.drain() if last else self._tail.poll():
            self._seen.take(fresh)
        self._looking = {one: self._looking.get(one, now) for one in self._seen.looking.items()}
        self._say_warnings()
        if self._harm_at is None and (self._seen.harms or self._seen.looks):
            self._harm_at = now
        if self._harm_at is not None and self._may_say_more and (last or now - self._harm_at >= WAIT_SECONDS):
            self._said = True
            # What a rank saw may have come from another one: that is known when all are read together.
            born = "" if self._seen.looks else "where it was born: "
            said = f"{clean(self._seen.line() or '')}; {born}report when the run ends"
            self._say(f"nandiag: {said} ({shown(self._folder)})\n")
        if self._seen.raised and not last:
            self._say_who_waited(now)
        if self._seen.stopped and not last:
            self._stop_at = now if self._stop_at is None else self._stop_at
            self._end_the_slow(now - self._stop_at, now)
        elif not last:
            self._end_the_hung(now)

    def _end_the_hung(self, now: float) -> None:
        newest = self._seen.attempts - 1
        attached = {key: worker for key, worker in self._seen.attached.items() if key[1] == newest}
        hang = self._hang.turn(now, Workers(attached, self._seen.listening), self._send)
        self._seen.hang = hang or self._seen.hang

    def _say_who_waited(self, now: float) -> None:
        """Say why a rank failed by waiting in vain as soon as it is known: to end its process may take long."""
        if self._raised_at is None:
            self._raised_at = now
        elif now - self._raised_at >= WAIT_SECONDS and self._may_say_more and len(self._seen.attached) <= MOST_WAITING:
            self._said = True
            folder = RunFolder(self._folder)
            said = waited_in_vain(folder) if presence.all_live(folder) else None
            if said is not None:
                self._say(f"nandiag: {clean(said)}; report when the run ends ({shown(self._folder)})\n")

    @property
    def _may_say_more(self) -> bool:
        return not self._said and self._seen.speaks

    def _say_warnings(self) -> None:
        """Show what is new of early warnings, each kind once; after a harm they no longer matter."""
        fresh, self._warned = self._seen.warned[self._warned :], len(self._seen.warned)
        for rank, warned in fresh if self._harm_at is None else ():
            from nandiag.analysis import early  # all of analysis comes with it: not before it is needed

            if self._seen.speaks:
                self._say(f"nandiag: {clean(early.line(rank, warned))}\n")

    def _end_the_slow(self, since: float, now: float) -> None:
        for key, worker in self._seen.attached.items():
            if (
                self._may_go_on(key, since, now)
                or key[1] != self._seen.attempts - 1
                or worker.host != socket.gethostname()
            ):
                continue
            first = self._signalled.setdefault(worker.pid, now)
            if first == now:
                self._send(worker.pid, signal.SIGTERM)
            elif now - first >= self._grace.kill:
                self._send(worker.pid, signal.SIGKILL)

    def _may_go_on(self, key: tuple[int, int, int], since: float, now: float) -> bool:
        if key in self._seen.stopping:
            return since < self._grace.own
        if key in self._seen.looking:
            began = self._looking[key, self._seen.looking[key]]
            if now - began < self._grace.looking:  # one of long ago was never to be looked at, or no more
                return True
        return since < (self._grace.apart if self._seen.alone else self._grace.others)

    def _send(self, pid: int, number: int) -> None:
        try:
            self._kill(pid, number)
            if number in (signal.SIGTERM, signal.SIGKILL):
                self._seen.ended.add(pid)
        except (ProcessLookupError, PermissionError):
            # It has ended by itself, and the number may be another's by now: leave it alone from here on.
            self._signalled[pid] = float("inf")


def signal_own(pid: int, number: int) -> None:
    """Send a signal to a process that descends from this one; raises ProcessLookupError for any other.

    The numbers come from files: one may be forged, or by now be that of a process that is none of ours.
    """
    ancestor = pid
    while ancestor > 1 and ancestor != os.getpid():
        ancestor = _parent(ancestor)
    if ancestor <= 1 or pid == os.getpid():
        raise ProcessLookupError(pid)
    os.kill(pid, number)


def _parent(pid: int) -> int:
    try:
        # "PID (NAME) STATE PARENT ...": a name may hold brackets of its own.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def shown(path: Path) -> str:
    """Return ``path`` as a user would type it: relative where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)

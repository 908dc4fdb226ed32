"""What NCCL's logs say about a run, in the form in which the report holds it (launcher and reader; pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nandiag.analysis.nccl.catalogue import Meaning, meaning_of
from nandiag.analysis.nccl.facts import Facts, Process, Trouble
from nandiag.analysis.nccl.read import shape
from nandiag.events import words

MOST_TROUBLES = 40
MOST_RANKS = 1_000
UNKNOWN = "nccl_unknown"
TIMED_OUT = "nccl_watchdog_timeout"
_LAST = {TIMED_OUT: 1, UNKNOWN: 2}
CODES = {
    1: ("a CUDA call failed", "warning"),
    2: ("a system call failed", "warning"),
    3: ("a check inside NCCL failed", "info"),
    4: ("an argument was not valid", "info"),
    5: ("NCCL was used in a way it does not take", "warning"),
    6: ("another process or the network failed", "warning"),
}
_KINDS = {
    "P2P": "GPU to GPU, NVLink or PCIe",
    "SHM": "host memory",
    "NET": "network",
    "COLLNET": "in-network reduction",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A transport that NCCL chose: ``links`` pairs of ranks use it, over ``channels`` channels."""

    transport: str
    kind: str
    links: int
    channels: int


@dataclass(frozen=True, slots=True)
class NcclTrouble:
    """One kind of trouble: what it means (``text``), what to do (``mend``), and the first line as NCCL wrote it.

    ``slug`` is ``nccl_unknown`` for a message that is in no catalogue: its words are shown as they are. ``ranks`` are
    global where the log's process is known, else those that NCCL itself told; ``processes`` are ``host:pid``. ``time``
    is text, in the host's own zone. ``chain`` are the places in NCCL that the error passed, ``code`` its result.
    """

    slug: str
    severity: str
    text: str
    mend: str | None
    message: str
    ranks: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()
    time: str | None = None
    count: int = 1
    code: int | None = None
    chain: tuple[str, ...] = ()
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Logs:
    """All of it. ``networks`` are those that NCCL chose between hosts, ``adapters`` the IB and RoCE ports it found.

    ``lines`` were read; ``other`` of them are NCCL's own and hold nothing that is used here.
    """

    files: int
    bytes: int
    lines: int
    other: int
    versions: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    networks: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    nvls: bool = False
    troubles: tuple[NcclTrouble, ...] = ()
    left_out: int = 0


def summary_of(facts: Facts, ranks: Mapping[Process, int]) -> Logs:
    """Return the summary; ``ranks`` maps (host without its domain, pid) to the global rank."""
    who = _Who(facts, ranks)
    troubles = _troubles(facts.troubles, who)
    hosts = {host for table in (facts.versions, facts.networks) for owners in table.values() for host, _ in owners}
    hosts |= {host for host, _ in facts.worlds}
    return Logs(
        files=facts.files,
        bytes=facts.bytes,
        lines=facts.lines,
        other=facts.other,
        versions=_versions(facts),
        links=_links(facts),
        networks=tuple(sorted(facts.networks)),
        adapters=tuple(sorted(facts.adapters)),
        settings=tuple(sorted(facts.settings)),
        hosts=tuple(sorted(host for host in hosts if host)),
        nvls=facts.nvls,
        troubles=tuple(troubles[:MOST_TROUBLES]),
        left_out=max(len(troubles) - MOST_TROUBLES, 0) + facts.dropped,
    )


class _Who:
    """Which rank a process is: by the run's own files, else by NCCL's largest communicator."""

    def __init__(self, facts: Facts, ranks: Mapping[Process, int]) -> None:
        self._told = ranks
        self._worlds = facts.worlds
        self._one_host = len({host for host, _ in ranks}) == 1

    def rank(self, trouble: Trouble) -> int | None:
        if trouble.rank is not None:
            return trouble.rank
        host, pid = trouble.process
        if (host, pid) in self._told:
            return self._told[host, pid]
        if self._one_host and pid is not None:
            # Inside a container NCCL may write another name for the host than Python does.
            return next((rank for (_, other), rank in self._told.items() if other == pid), None)
        world = self._worlds.get((host, pid))
        return None if world is None or self._told else world[0]


def _versions(facts: Facts) -> tuple[str, ...]:
    """Return the versions; one that torch told without its CUDA (``2.19.3``) is left out beside ``2.19.3+cuda12.3``."""
    whole = {version.split("+")[0] for version in facts.versions if "+" in version}
    return tuple(sorted(version for version in facts.versions if "+" in version or version not in whole))


def _links(facts: Facts) -> tuple[Link, ...]:
    found: dict[str, list[int]] = {}
    for (_, _, transport), channels in facts.links.items():
        sums = found.setdefault(transport, [0, 0])
        sums[0] += 1
        sums[1] += channels
    return tuple(
        Link(name, _KINDS.get(name.split("/")[0], "unknown"), links, channels)
        for name, (links, channels) in sorted(found.items(), key=lambda item: -item[1][0])
    )


def _troubles(troubles: Iterable[Trouble], who: _Who) -> list[NcclTrouble]:
    groups: dict[tuple[str, str], tuple[Meaning, list[Trouble]]] = {}
    for one in troubles:
        meaning = _meaning(one)
        # One kind with many peers is one trouble: the first of them is told.
        groups.setdefault((meaning.slug, shape(meaning.text)), (meaning, []))[1].append(one)
    found = [_joined(meaning, members, who) for meaning, members in groups.values()]
    return sorted(found, key=_order)


def _order(one: NcclTrouble) -> tuple[bool, bool, int, str]:
    """Put first what is known as a cause, then time-outs, which tell only that there is one.

    Of words that nobody knows there may be many: they must not push a time-out off a list that is cut. Echoes of
    another's end come last.
    """
    return one.severity != "warning", one.follows, _LAST.get(one.slug, 0), one.time or "~"


def _meaning(trouble: Trouble) -> Meaning:
    if trouble.what == "watchdog":
        return _timed_out(trouble)
    known = meaning_of(trouble.message) if trouble.what == "warn" else None
    if known is not None:
        return known
    if trouble.what == "warn":
        return Meaning(UNKNOWN, trouble.message, "", "warning")
    text, severity = CODES.get(trouble.code or 0, (f"NCCL handed on result {trouble.code}", "info"))
    where = f" (at {trouble.chain[0]})" if trouble.chain else ""
    mend = "Look for the first WARN before it, or run with NCCL_DEBUG=INFO to have one written."
    return Meaning(f"nccl_result_{trouble.code}", f"{text}{where}", mend, severity)


def _timed_out(trouble: Trouble) -> Meaning:
    parts = dict(part.split("=", 1) for part in _call(trouble.message).split(", ") if "=" in part)
    what = parts.get("OpType", "a collective").lower().strip("_")
    number = f" number {parts['SeqNum']}" if "SeqNum" in parts else ""
    seconds = parts.get("Timeout(ms)", "")
    limit = f" within {int(seconds) / 1000:g} s" if seconds.isdigit() else ""
    text = f"the collective {what}{number} did not end{limit}, by torch's watchdog"
    mend = "Find the rank that did not call it, or died: the one without this message, or with a lower number."
    return Meaning(TIMED_OUT, text, mend)


def _call(message: str) -> str:
    _, _, call = message.partition("WorkNCCL(")
    return call.replace(")) ran", ")\0").replace(") ran", "\0").split("\0")[0]


def _joined(meaning: Meaning, members: list[Trouble], who: _Who) -> NcclTrouble:
    first = min(members, key=lambda one: one.time or "~")
    # Of two warnings on one failure the error hangs on the later.
    passed = first if first.chain else next((one for one in members if one.chain), first)
    ranks = sorted({rank for one in members if (rank := who.rank(one)) is not None})
    processes = sorted({f"{host or '?'}:{pid or '?'}" for host, pid in (one.process for one in members)})
    return NcclTrouble(
        slug=meaning.slug,
        severity=meaning.severity,
        text=meaning.text,
        mend=meaning.mend or None,
        message=first.message,
        ranks=tuple(ranks[:MOST_RANKS]),
        processes=tuple(processes[:MOST_RANKS]),
        time=first.time,
        count=sum(one.count for one in members),
        code=passed.code,
        chain=tuple(passed.chain),
        follows=meaning.follows,
    )


def sentence(trouble: NcclTrouble) -> str:
    """Return who, when and what in one sentence, without the mend."""
    who = words.ranks(trouble.ranks) if trouble.ranks else words.few(trouble.processes, most=2)
    when = f" at {trouble.time}" if trouble.time else ""
    times = f" ({trouble.count} times)" if trouble.count > 1 else ""
    unknown = trouble.slug == UNKNOWN
    said = f'"{trouble.text}" (nandiag does not know this message)' if unknown else trouble.text
    return f"{who}{when}: {said}{times}."

"""Blocks of NCCL logs in, facts out: a scan of whole blocks finds the few lines worth a closer look (pure, bounded).

A log of gigabytes is nearly all lines that say nothing new. One regular expression runs over each block of bytes; only
what it finds is ever made a line of text.
"""

from __future__ import annotations

import re

from nandiag.analysis.nccl.facts import Facts, Process, Trouble
from nandiag.analysis.nccl.line import Line, parse

MOST_LINKS = 100_000
MOST_TROUBLES = 2_000
MOST_PROCESSES = 20_000
MOST_CHAIN = 12
LONGEST_LINE = 16_384

# Each alternative is bounded in length, so that no line, however long or foreign, costs more than its bytes. All begin
# with the same letters, to which `re` skips; the last one is `ProcessGroupNCCL.cpp`.
_WORTH = re.compile(
    rb"NCCL(?: (?:INFO (?:Channel [\d/]{1,9} : (\d.{0,120})"
    rb"|[^\s]{1,300}:\d{1,7} (?:\([^)\n]{0,200}\) )?-> \d|NET/|Using network|\[Rank \d|(?:\w{1,40} )?comm 0x"
    rb"|NCCL_[A-Z0-9_]{1,60} set |NCCL version |\d{1,4} coll channels|CollNet )"
    rb"|WARN|version )"
    rb"|\.cpp:\d)"
)
_LINK = re.compile(rb"(\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[\w+\])? via (.+)")
_RESULT = re.compile(r"(\S+:\d+) (?:\([^)]*\) )?-> (\d+)\b")
_COMM = re.compile(r"\bcomm 0x[0-9a-f]+ rank (\d+) nranks (\d+)\b")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+\S*)")
_ADAPTERS = re.compile(r"\[\d+\]([\w.-]+:\d+/(?:IB|RoCE))")
_NETWORK = re.compile(r"Using network (\S+)")
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (\S{1,80}?)\.?$")
_NVLS = re.compile(r"coll channels, .*?\b([1-9]\d*) nvls channels")
_COLLNET = re.compile(r"CollNet \d+/\d+ : (\d+) \[\w+\] via (COLLNET/\S+)")
_TIMED_OUT = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\(")
_VARYING = re.compile(r"0x[0-9a-fA-F]+|nccl-\w+|<\d+>|\d+(?:\.\d+){3}|[0-9a-f]{0,4}(?::[0-9a-f.]{0,15}){3,}|\d{4,}")
_IN_PROGRESS = 7


class Reading:
    """Reads the blocks of any number of log files; :attr:`facts` is what they said so far."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._rest = b""
        self._long = False
        self._links: dict[bytes, int] = {}
        self._open: dict[tuple[Process, int | None], Trouble] = {}
        self._kinds: dict[tuple[str, Process, str], Trouble] = {}
        self._process: Process = (None, None)

    def begin(self, host: str | None = None, pid: int | None = None) -> None:
        """Begin a file; ``host`` and ``pid`` are what its name says, for lines that do not name their process."""
        self.facts.files += 1
        self._process = (host, pid)

    def feed(self, block: bytes) -> None:
        """Read the next bytes of the file."""
        self.facts.bytes += len(block)
        cut = block.rfind(b"\n") + 1
        if not cut:
            self._keep(block)
            return
        whole = self._rest + block[:cut] if self._rest else block[:cut]
        self._rest = b""
        self._keep(block[cut:])
        self._scan(whole)

    def end(self) -> None:
        """End the file: its last line counts even where the process died while writing it."""
        rest, self._rest = self._rest, b""
        if rest:
            self._scan(rest)
        self._open.clear()
        self._fold_links()

    def _keep(self, part: bytes) -> None:
        """Keep the beginning of a line whose end is still to come; of one without end only as much as is ever used."""
        self._rest += part[: max(LONGEST_LINE - len(self._rest), 0)]

    def _scan(self, block: bytes) -> None:
        links, facts = self._links, self.facts
        seen = looked = 0
        for found in _WORTH.finditer(block):
            if found.start() < looked:  # a warning may speak of an `NCCL version`: it is one line all the same
                continue
            seen += 1
            link = found[1]
            if link is None:
                looked = self._look(block, found.start())
            elif link in links:
                links[link] += 1
            elif len(links) < MOST_LINKS:
                links[link] = 1
        facts.lines += block.count(b"\n") + (not block.endswith(b"\n"))
        facts.known += seen
        facts.other += max(block.count(b" NCCL ") - seen, 0)

    def _look(self, block: bytes, at: int) -> int:
        """Look closely at the line around ``at``; returns where it ends."""
        first = block.rfind(b"\n", max(0, at - LONGEST_LINE), at) + 1
        first = first or max(0, at - 512)
        last = block.find(b"\n", at, at + LONGEST_LINE)
        last = last if last >= 0 else at + LONGEST_LINE
        line = parse(block[max(first, at - 512) : last])
        if line is None:
            self._version(self._process, block[at : at + 60].decode("latin-1"))
        else:
            self._take(line)
        return last

    def _take(self, line: Line) -> None:
        process = (line.host, line.pid) if line.host is not None else self._process
        if line.level == "TORCH":
            self._watchdog(line, process)
        elif line.level == "WARN":
            self._trouble("warn", line, process)
        else:
            self._info(line, process)

    def _info(self, line: Line, process: Process) -> None:
        result = _RESULT.match(line.message)
        if result is not None:
            self._chain(line, process, result[1], int(result[2]))
            return
        self._version(process, line.message)
        comm = _COMM.search(line.message)
        if comm is not None:
            rank, ranks = int(comm[1]), int(comm[2])
            if ranks >= self.facts.worlds.get(process, (0, 0))[1] and len(self.facts.worlds) < MOST_PROCESSES:
                self.facts.worlds[process] = (rank, ranks)
            return
        self._network(line.message, process)

    def _network(self, message: str, process: Process) -> None:
        facts = self.facts
        if found := _NETWORK.match(message):
            _add(facts.networks, found[1], process)
        elif message.startswith("NET/IB : Using"):
            for name in _ADAPTERS.findall(message):
                _add(facts.adapters, name, process)
        elif message.startswith("NET/IB : No device"):
            facts.no_adapters.add(process)
        elif found := _SETTING.match(message):
            _add(facts.settings, f"{found[1]}={found[2]}", process)
        elif _NVLS.search(message):
            facts.nvls = True
        elif found := _COLLNET.match(message):
            key = (int(found[1]), int(found[1]), found[2])
            facts.links[key] = facts.links.get(key, 0) + 1

    def _version(self, process: Process, text: str) -> None:
        if found := _VERSION.search(text):
            _add(self.facts.versions, found[1], process)

    def _chain(self, line: Line, process: Process, place: str, code: int) -> None:
        """Hang a place that an error passed on the trouble it came from: the last one of the same thread."""
        if code in (0, _IN_PROGRESS):
            return
        trouble = self._open.get((process, line.thread))
        if trouble is None or (trouble.code not in (None, code)):
            trouble = self._trouble("chain", line, process)
        if trouble is None:
            return
        trouble.code = code
        if len(trouble.chain) < MOST_CHAIN and place not in trouble.chain:
            trouble.chain.append(place)

    def _watchdog(self, line: Line, process: Process) -> None:
        if _TIMED_OUT.search(line.message) and "thread terminated" not in line.message:
            self._trouble("watchdog", line, process)

    def _trouble(self, what: str, line: Line, process: Process) -> Trouble | None:
        kind = (what, process, f"{line.rank}{shape(line.message)}")
        known = self._kinds.get(kind)
        if known is not None:
            known.count += 1
        elif len(self._kinds) >= MOST_TROUBLES:
            self.facts.dropped += 1
            return None
        else:
            known = Trouble(what, line.message, process, line.time, line.rank, line.place)
            self._kinds[kind] = known
            self.facts.troubles.append(known)
        self._open[(process, line.thread)] = known
        return known

    def _fold_links(self) -> None:
        for raw, count in self._links.items():
            found = _LINK.match(raw)
            if found is not None:
                key = (int(found[1]), int(found[2]), transport(found[3].decode("latin-1")))
                self.facts.links[key] = self.facts.links.get(key, 0) + count
        self._links.clear()


def transport(via: str) -> str:
    """Return the kind of a transport without the number of its device: ``NET/IB/3(7)/GDRDMA`` is ``NET/IB/GDRDMA``."""
    parts = [part for part in re.split(r"[/ ]", via.strip()) if part]
    kind = parts[0] if parts else "?"
    if kind in {"NET", "COLLNET"}:
        rdma = "/GDRDMA" if any(part.startswith("GDRDMA") for part in parts) else ""
        return "/".join(parts[:2]) + rdma
    return "SHM" if kind == "SHM" else "/".join(parts[:2]) if kind == "P2P" else kind


def shape(message: str) -> str:
    """Return a message without its addresses and long numbers, so that repetitions are one kind."""
    return _VARYING.sub("#", message[:300])


def _add(table: dict[str, set[Process]], key: str, process: Process) -> None:
    owners = table.get(key)
    if owners is None:
        if len(table) >= MOST_PROCESSES:
            return
        owners = table[key] = set()
    if len(owners) < MOST_PROCESSES:
        owners.add(process)

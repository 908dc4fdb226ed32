"""One line of NCCL, as versions 2.19 to 2.30 write it, or of torch's NCCL watchdog (launcher and reader).

``[time] host:pid:tid [device] file:line (function) NCCL WARN message``: the time stands there since 2.26 (before a WARN
alone, unless the user asked for more), the function since 2.30, file and line before a WARN and a TRACE only. Other
launchers put words of their own in front, which are passed over. Source: ``src/debug.cc`` of NCCL, tags v2.19.3-1 to
v2.30.7-1, and logs that users posted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 1_000
_NCCL = re.compile(
    r"(?P<host>[^\s:]{1,255}):(?P<pid>\d{1,10}):(?P<thread>\d{1,10}) \[(?P<device>-?\d{1,4})\] "
    r"(?:(?P<place>\S{1,300}:\d{1,7}) (?:\((?P<function>[^)]{0,200})\) )?)?"
    r"NCCL (?P<level>WARN|INFO) ?(?P<message>.*)",
    re.DOTALL,
)
# As in collected notes: `[3] include/shm.h:28 NCCL WARN ...`, without host and process.
_BARE = re.compile(
    r"(?:\[\d{1,4}\] )?(?:(?P<place>\S{1,300}:\d{1,7}) )?NCCL (?P<level>WARN|INFO) ?(?P<message>.*)", re.DOTALL
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
_TORCH = re.compile(
    r"(?:\[rank(?P<rank>\d{1,6})\]:)?\[[EWIF]\d{0,4} ?(?P<time>[\d:.]{8,18})? ?ProcessGroupNCCL\.cpp:\d+\] "
    r"?(?P<message>.*)",
    re.DOTALL,
)
_TORCH_RANK = re.compile(r"\bRank (\d{1,6})\]")
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True, slots=True)
class Line:
    """What one line says of itself; parts that it does not hold are ``None``. ``time`` is text, in the host's zone."""

    message: str
    level: str
    host: str | None = None
    pid: int | None = None
    thread: int | None = None
    place: str | None = None
    time: str | None = None
    rank: int | None = None


def visible(raw: bytes) -> str:
    """Return the text of a line without terminal control sequences and control characters, cut at a bound."""
    return _CONTROL.sub("", raw[: 4 * LONGEST].decode("utf-8", "replace"))[: 2 * LONGEST].rstrip()


def parse(raw: bytes) -> Line | None:
    """Return the line, or ``None`` when it is in no form known here."""
    text = visible(raw)
    found = _NCCL.search(text)
    if found is not None:
        time = _last_time(text[: found.start()])
        return Line(
            found["message"][:LONGEST], found["level"], found["host"], int(found["pid"]), int(found["thread"]),
            found["place"], time,
        )  # fmt: skip
    found = _TORCH.search(text)
    if found is not None:
        rank = found["rank"] or _first(_TORCH_RANK.search(text))
        return Line(found["message"][:LONGEST], "TORCH", time=found["time"], rank=int(rank) if rank else None)
    found = _BARE.search(text)
    if found is not None:
        return Line(found["message"][:LONGEST], found["level"], place=found["place"], time=_last_time(text))
    return None


def _last_time(text: str) -> str | None:
    every = _TIME.findall(text[-200:])
    return every[-1] if every else None


def _first(found: re.Match[str] | None) -> str | None:
    return found[1] if found else None

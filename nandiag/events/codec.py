"""Events to and from JSON lines: one object a line, ``kind`` names the dataclass.

Unknown fields are ignored and unknown kinds kept as :class:`~nandiag.events.kinds.Unknown`, so that an older reader
can read what a newer worker wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from nandiag.events import kinds
from nandiag.events.forms import build, plain

KINDS: dict[str, type] = {
    "attached": kinds.Attached,
    "armed": kinds.Armed,
    "listening": kinds.Listening,
    "placed": kinds.Placed,
    "probe_dark": kinds.ProbeDark,
    "note": kinds.Note,
    "harm": kinds.Harm,
    "looked": kinds.Looked,
    "next": kinds.Next,
    "sent": kinds.Sent,
    "skipped": kinds.Skipped,
    "warned": kinds.Warned,
    "replicas": kinds.Replicas,
    "printed": kinds.Printed,
    "stopping": kinds.Stopping,
    "raised": kinds.Raised,
    "history": kinds.History,
    "compared": kinds.Compared,
    "activations": kinds.Activations,
    "finished": kinds.Finished,
}
_NAMES = {cls: name for name, cls in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a rank file: the event, its number in the file and the wall-clock time (seconds since the epoch)."""

    seq: int
    time: float
    event: kinds.Event


def encode(record: Record) -> str:
    """Return one line of JSON without a newline; raises TypeError when a field holds something JSON cannot say."""
    head = {"kind": _NAMES[type(record.event)], "seq": record.seq, "time": round(record.time, 6)}
    return json.dumps({**head, **plain(record.event)}, allow_nan=False, separators=(",", ":"))


def decode(line: str | bytes, tensors: int | None = None) -> Record:
    """Return the record of one line, with the first ``tensors`` of its tensors (None: all).

    Raises:
        ValueError: when the line is no record of ours.
    """
    try:
        data = json.loads(line if isinstance(line, str) else line.decode("utf-8", "surrogatepass"))
        if tensors is not None and "tensors" in data:
            data["tensors"] = data["tensors"][:tensors]
        cls = KINDS.get(data["kind"])
        event: kinds.Event = kinds.Unknown(str(data["kind"])) if cls is None else build(cls, data)
        return Record(seq=int(data["seq"]), time=float(data["time"]), event=event)
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not an event: {error!r}") from error

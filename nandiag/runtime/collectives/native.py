"""The backends' own record of collectives (torch's flight recorder), read in this process where torch tells it as JSON.

It holds what DDP's reducer and others call in C++. Newer torch records gloo's calls too. Runs in the worker.
"""

from __future__ import annotations

import json

import torch

from nandiag.store.flight.dumps import Flight, flight_of

_MOST = 96
_LONGEST = 16 * 1024 * 1024
# One record for NCCL, and one for the backends of other devices.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def recorded(groups: frozenset[str]) -> Flight:
    """Return the newest calls that the backends recorded in ``groups``, oldest first; none where torch tells none."""
    flights = [flight_of(json.loads(text), _MOST) for name in _DUMPS if (text := _dump(name))]
    calls = [call for one in flights for call in one.calls if call.group in groups]
    return Flight(tuple(calls), tuple(group for one in flights for group in one.groups if group.name in groups))


def _dump(name: str) -> bytes | str | None:
    home = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(home, name, None)
    text: bytes | str | None = dump() if dump is not None else None
    return text if text is not None and len(text) <= _LONGEST else None

"""The backends' own record of collectives (torch's flight recorder), read in this process where torch tells it as JSON.

It holds what DDP's reducer and others call in C++. Newer torch records gloo's calls too. Runs in the worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from nandiag.events.standing import DONE, ISSUED, CallFact

_MOST = 96
_LONGEST = 16 * 1024 * 1024
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def native_calls(groups: frozenset[str]) -> tuple[CallFact, ...]:
    """Return the newest calls that the backends recorded in ``groups``, oldest first; none where torch tells none."""
    try:
        home = torch._C._distributed_c10d
    except AttributeError:
        return ()
    dump: Callable[[], bytes | str] | None = next((one for name in _DUMPS if (one := getattr(home, name, None))), None)
    if dump is None:
        return ()
    text = dump()
    if len(text) > _LONGEST:
        return ()
    entries = json.loads(text).get("entries") or []
    return tuple(call for one in entries[-4 * _MOST :] if (call := _call(one, groups)) is not None)[-_MOST:]


def _call(entry: dict[str, Any], groups: frozenset[str]) -> CallFact | None:
    name = str((entry.get("process_group") or [""])[0])
    if entry.get("is_p2p") or name not in groups:
        return None
    sizes = entry.get("input_sizes") or []
    dtypes = entry.get("input_dtypes") or []
    number = int(entry["collective_seq_id"])
    return CallFact(
        op=str(entry.get("profiling_name", "")).rpartition(":")[2],
        group=name,
        seq=number - 1,
        state=DONE if entry.get("state") == "completed" else ISSUED,
        native=number,
        dtype=str(dtypes[0]).lower() if dtypes else None,
        shapes=tuple(tuple(int(size) for size in shape) for shape in sizes[:8]),
    )

"""The script's hooks on what autograd saves for backward: a step is run again under them (worker)."""

from __future__ import annotations

import functools
import threading
from typing import Any

from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from nandiag.runtime.guard import disarm, guarded

# Those that are set now, innermost last, each with its thread.
HOOKS: list[tuple[int, Any]] = []


def watch_packing() -> None:
    """Note from now on which hooks on saved tensors (``save_on_cpu``, a cast) the script has set; for good."""
    enters, leaves = saved_tensors_hooks.__enter__, saved_tensors_hooks.__exit__

    @functools.wraps(enters)
    def enter(self: saved_tensors_hooks) -> None:
        enters(self)
        _packs(self)

    @functools.wraps(leaves)
    def leave(self: saved_tensors_hooks, *args: object) -> None:
        _packs_no_more(self)
        leaves(self, *args)

    saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
    saved_tensors_hooks.__exit__ = leave  # type: ignore[method-assign]


@guarded("tape")
def _packs(hooks: saved_tensors_hooks) -> None:
    # Those that torch sets within its own work, as checkpointing does, are made anew by a replay.
    kind = type(hooks)
    if kind in {saved_tensors_hooks, save_on_cpu} or not kind.__module__.startswith("torch."):
        HOOKS.append((threading.get_ident(), hooks))


def _packs_no_more(hooks: saved_tensors_hooks) -> None:
    # Also while nothing is recorded: what stayed here would be taken for the script's for good.
    try:
        HOOKS[:] = [one for one in HOOKS if one[1] is not hooks]
    except Exception as error:
        disarm("tape", error)


def packing() -> tuple[Any, Any] | None:
    """Return the script's innermost hooks on saved tensors of this thread: what packs, and what unpacks."""
    own = (one for ident, one in reversed(HOOKS) if ident == threading.get_ident())
    found = next(own, None)
    return None if found is None else (found.pack_hook, found.unpack_hook)

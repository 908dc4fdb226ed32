"""Which processes count as ranks: DataLoader workers, resource trackers and compile workers must not."""

from __future__ import annotations

import signal
import sys
from enum import Enum

from nandiag import settings

_PR_SET_PDEATHSIG = 1


class Kind(Enum):
    """What a Python process of the run is to us.

    ``WORKER``: a rank, known by its environment. ``ALONE``: the first process of a run whose environment
    tells no ranks, rank 0 if it trains. ``MAYBE``: a rank if it joins a process group. ``HELPER``: no rank, ever.
    """

    WORKER = "worker"
    ALONE = "alone"
    MAYBE = "maybe"
    HELPER = "helper"


def kind() -> Kind:
    """Tell what this process is, and claim its rank when it is the first of its job slot."""
    if _is_infrastructure():
        return Kind.HELPER
    place = settings.place()
    first = settings.claim(place)
    if first and place.rank is not None:
        return Kind.WORKER
    if settings.from_env().launcher != "none":
        return Kind.HELPER
    # Where ranks are not started by torchrun a child may prove to be one: mp.spawn tells it its rank as an argument.
    return Kind.ALONE if first else Kind.MAYBE


def end_with_launcher() -> None:
    """Have the kernel send SIGTERM to this process should its launcher die without ending it: no orphan trains on.

    Nothing is done for a process that the launcher did not start itself, nor where the system has no such call.
    """
    if not settings.is_child_of_launcher():
        return
    import ctypes  # torch loads it in any case

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _is_infrastructure() -> bool:
    words = " ".join(sys.orig_argv)
    return any(name in words for name in ("resource_tracker", "forkserver", "compile_worker", "torch._inductor"))

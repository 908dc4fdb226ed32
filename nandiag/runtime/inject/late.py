"""A rank that its environment did not tell: attached when it first trains, for then it is known to be one (worker)."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from nandiag import settings
from nandiag.runtime.recorder import RECORDER


def attach_late() -> bool:
    """Attach this process by the process group's rank, or as rank 0 when it is alone; returns whether it is a rank.

    A child of the script that trains something of its own is none: it is neither watched nor stopped.
    """
    if RECORDER.attached or RECORDER.mute:
        return RECORDER.attached
    place = settings.place()
    if dist.is_available() and dist.is_initialized():
        place = replace(place, rank=dist.get_rank(), world_size=dist.get_world_size())
    elif not RECORDER.alone:
        return False
    RECORDER.attach(place)
    return RECORDER.attached

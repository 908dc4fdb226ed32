"""A rank that its environment did not tell: attached when it first trains, for then it is known to be one (worker)."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from nandiag import settings
from nandiag.runtime.recorder import RECORDER


def attach_late() -> None:
    """Attach this process by the process group's rank, by the environment's where no group exists, else as rank 0."""
    if RECORDER.attached or RECORDER.mute:
        return
    place = settings.place()
    if dist.is_available() and dist.is_initialized():
        place = replace(place, rank=dist.get_rank(), world_size=dist.get_world_size())
    RECORDER.attach(place)

"""A rank that its environment did not tell: attached when it first trains, for then it is known to be one (worker)."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from nandiag import settings
from nandiag.runtime.recorder import RECORDER
from nandiag.store.layout import RunFolder, rank_path


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


def attach_untrained(*, ends: bool = False) -> bool:
    """Attach a process that only calls models: as a rank of its process group, or as rank 0 when it ``ends`` alone.

    A script that calls a model and then starts its ranks is none itself: by its end one of them was rank 0.
    """
    if RECORDER.attached or RECORDER.mute:
        return RECORDER.attached
    joined = dist.is_available() and dist.is_initialized()
    return (joined or (ends and not _has_rank_0())) and attach_late()


def _has_rank_0() -> bool:
    return rank_path(RunFolder.at(RECORDER.settings.folder), 0, settings.place().attempt).exists()

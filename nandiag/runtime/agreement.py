"""Whether any rank saw harm, before the weights of any rank change (worker).

One element by a MAX all-reduce on a gloo group of our own, built straight on the job's store, so that no group of the
script's is touched and no name of its groups shifts. Bounded in time; on the first failure it disarms for the run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nandiag.events import Note
from nandiag.runtime.recorder import RECORDER

PATIENCE = timedelta(seconds=20)


class Agreement:
    """A group of our own over all ranks; made at its first use, made anew when the script makes a new default group."""

    def __init__(self) -> None:
        self._group: Any = None
        self._made_for: object = None
        self._disarmed = False
        self._count = 0

    @property
    def possible(self) -> bool:
        """Whether there is another rank to agree with."""
        return not self._disarmed and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def any(self, *, flag: bool) -> bool:
        """Return whether any rank passed True; this rank's own flag where no agreement can be had."""
        return bool(self.most(int(flag)))

    def most(self, level: int) -> int:
        """Return the largest ``level`` (0 to 255) of any rank; this rank's own where no agreement can be had."""
        if not self.possible:
            return level
        try:
            flag = torch.tensor([level], dtype=torch.uint8, device="cpu")
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
            options.timeout = PATIENCE
            self._ours().allreduce([flag], options).wait()
            return int(flag.item())
        except Exception as error:  # whatever gloo or the store raises: the run goes on without agreement
            self._disarm(error)
            return level

    def _ours(self) -> Any:
        default = dist.group.WORLD
        if self._group is None or self._made_for is not default:
            self._count += 1
            store = dist.distributed_c10d.PrefixStore(
                f"nandiag/agreement/{self._count}", dist.distributed_c10d._get_default_store()
            )
            self._group = dist.ProcessGroupGloo(store, dist.get_rank(), dist.get_world_size(), PATIENCE)
            self._made_for = default
        return self._group

    def _disarm(self, error: Exception) -> None:
        self._disarmed = True
        self._group = None
        RECORDER.emit(
            Note(
                f"The ranks do not step together (one waited {PATIENCE.seconds} s for the others, or "
                "their group failed: "
                f"{str(error).splitlines()[0][:200] if str(error) else type(error).__name__}); "
                "from here on each rank judges alone."
            )
        )

    def close(self) -> None:
        """Let go of the group, before its threads meet the interpreter's teardown."""
        self._group = None
        self._made_for = None

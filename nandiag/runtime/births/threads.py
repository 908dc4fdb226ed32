"""The torch calls of threads that the script starts, such as one that prepares batches, are recorded as well (worker).

Each thread has a record of its own, which looks while it has taken less than its share of the time. What is not looked
at meanwhile is not known; a thread that calls so often that hardly anything is looked at is left alone.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nandiag.runtime.births.prelude import Prelude, target_of, writes
from nandiag.runtime.births.record import SILENT, Record
from nandiag.runtime.frames import TORCH, is_ours, kind_of
from nandiag.runtime.guard import guarded
from nandiag.runtime.look.finite import norms, quiet

_MOST = 16
_SMALL = 1 << 16
_PASSED = 4096
_SHARE = 4


class Strand(Prelude):
    """Sees the torch calls of one thread."""

    def __init__(self) -> None:
        super().__init__(Record())
        self._seen = self._passed = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Have the call recorded, where there is time for it."""
        if self.shut or getattr(func, "__name__", "") in SILENT:
            return func(*args, **(kwargs or {}))
        if self.record.left() > 0.0:
            self._seen += 1
            return super().__torch_function__(func, types, args, kwargs)
        output = func(*args, **(kwargs or {}))
        self._pass(target_of((args, kwargs or {})) if writes(func, kwargs or {}) else None)
        return output

    def _record(self, name: str, func: Any, words: tuple[Any, Any], output: Any) -> None:
        """Of what is new and finite nothing need be known: it is by far the most, and is over soon."""
        began = time.thread_time()
        new = type(output) is Tensor and output.is_cpu and output.is_floating_point() and not writes(func, words[1])
        if new and output.numel() <= _SMALL and output.layout is torch.strided:
            with quiet():
                finite = math.isfinite(norms([output])[0].item())
            self.record.spent += time.thread_time() - began
            if finite:
                return
        super()._record(name, func, words, output)

    @guarded("births")
    def _pass(self, target: Tensor | None) -> None:
        """A call was not looked at: what is known of the memory that it has written does not hold any more."""
        if target is not None:
            self.record.forget(target)
        self._passed += 1
        if self._passed > _PASSED and self._passed > _SHARE * self._seen:
            self._leave()

    def _leave(self) -> None:
        """Take the mode off the stack at the next call or return behind this one: within its handler it cannot be."""
        self.shut = True
        self.record.lose()
        if sys.getprofile() is None:
            sys.setprofile(self._off)

    def _off(self, *_: Any) -> None:
        if any(torch._C._get_function_stack_at(at) is self for at in range(torch._C._len_torch_function_stack())):
            sys.setprofile(None)
            self.close()


class Threads:
    """The strands of the script's threads, the newest few."""

    def __init__(self) -> None:
        self._held: list[Strand] = []
        self._shut = False

    def begin(self) -> None:
        """See what threads do that begin from now on; those of a process forked meanwhile are none of ours."""
        original = getattr(threading.Thread, "_bootstrap_inner", None)
        if original is None:
            return
        os.register_at_fork(after_in_child=self._end)

        @functools.wraps(original)
        def bootstrap_inner(thread: threading.Thread) -> None:
            strand = None if self._shut else self._begins(thread)
            try:
                original(thread)
            finally:
                if strand is not None:
                    strand.close()

        threading.Thread._bootstrap_inner = bootstrap_inner  # type: ignore[attr-defined]

    def _end(self) -> None:
        self._shut = True
        self._held.clear()

    @guarded("births")
    def _begins(self, thread: threading.Thread) -> Strand | None:
        if not _is_scripts(thread):
            return None
        strand = Strand()
        self._held = [*self._held[1 - _MOST :], strand]
        strand.open()
        return strand

    @property
    def records(self) -> Iterator[Record]:
        """What is known of the memory that each thread wrote."""
        return (strand.record for strand in reversed(self._held))

    def forget(self, tensor: Tensor) -> None:
        """The script has written into ``tensor`` elsewhere."""
        for strand in self._held:
            strand.record.forget(tensor)


def _is_scripts(thread: threading.Thread) -> bool:
    """Whether what the thread runs is the script's, or a library's, and neither torch's nor ours."""
    run = type(thread).run
    function = getattr(thread, "_target", None) if run is threading.Thread.run else run
    function = getattr(function, "func", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is None or not (kind_of(code.co_filename) == TORCH or is_ours(code.co_filename))

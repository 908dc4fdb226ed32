"""Dynamo begins with no frame of ours: what runs between two graphs of the script's runs as it is (worker).

A function of the script's that is compiled, and holds more than one graph can, calls the rest as Python; each frame
that this comes to may be compiled in its turn, those of our hooks too, anew for each thing that they had seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame

from nandiag.runtime.frames import is_ours
from nandiag.runtime.guard import guarded
from nandiag.runtime.inject.after_import import after_import


@contextmanager
def uncompiled() -> Iterator[None]:
    """Have compiled functions run as they were written, and nothing be compiled; so too within one that is compiled."""
    if "torch._dynamo" not in sys.modules:  # then it has compiled nothing
        yield
        return
    with _outside(), torch.compiler.set_stance("force_eager"):
        yield


def uncompiled_from_now_on() -> None:
    """Have all that is compiled run as it was written until the process ends."""
    with _outside():
        torch.compiler.set_stance("force_eager")


@contextmanager
def _outside() -> Iterator[None]:
    """Be in no compiled region, in which torch would not have this changed."""
    under_way = set_eval_frame(None)
    try:
        yield
    finally:
        set_eval_frame(under_way)


def leave_ours_alone() -> None:
    """Have Dynamo skip our files as it skips torch's own; from the script's code it still traces through our wraps."""
    after_import("torch._dynamo.trace_rules", guarded("compile")(_skip))


def _skip(rules: Any) -> None:
    original, skipped = rules.check_file, rules.SkipResult(skipped=True, reason="nandiag's own")
    code = getattr(original, "__code__", None)  # of a cached function there is none
    if code is not None and is_ours(code.co_filename):
        return  # once is enough

    @functools.wraps(original)
    def check_file(filename: str | None, is_inlined_call: bool = False) -> Any:  # noqa: FBT001, FBT002 - as it was
        if not is_inlined_call and filename is not None and is_ours(filename):
            return skipped
        return original(filename, is_inlined_call)

    rules.check_file = check_file

"""Runs a script with a peer switched on, and writes what the peer named. Stands where the script stood, in the worker.

    torchrun --nproc-per-node 2 peer.py TOOL OUT SCRIPT [ARGS...]        # writes OUT.RANK where the peer alarmed

The script is not changed. The peers: ``anomaly`` is ``torch.autograd.detect_anomaly(check_nan=True)`` around it all,
``hooks`` a forward hook on every leaf module that reads the output at once, ``underflow`` transformers'
``DebugUnderflowOverflow`` on each root module when it is first called. Step and rank, which no peer tells, are filled
in for them: optimizer steps taken so far, and the rank that alarmed.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
NAN_FOUND = re.compile(r"Function '(?P<node>\w+)' returned nan values")


class Alarm(Exception):  # noqa: N818  (a peer's word, not an error of ours)
    """A peer has named a place; the script ends."""


class Notes:
    """What a peer saw first, and the steps taken until then."""

    def __init__(self, out: str, folder: str) -> None:
        """Count the steps of every optimizer from here on; ``folder`` is the script's."""
        self.out, self.folder = f"{out}.{os.environ.get('RANK', '0')}", folder
        self.steps: Counter[int] = Counter()
        register_optimizer_step_post_hook(lambda optimizer, *_: self.steps.update([id(optimizer)]))

    def write(self, frames: list[tuple[str, int]], **said: Any) -> None:
        """Write the first alarm; ``frames`` are file and line, innermost last."""
        if Path(self.out).exists():
            return
        own = [(Path(name).name, line) for name, line in frames if name.startswith(self.folder)]
        file, line = own[-1] if own else (None, None)
        step, rank = max(self.steps.values(), default=0), int(os.environ.get("RANK", "0"))
        found = {"time": time.time(), "rank": rank, "step": step, "file": file, "line": line, **said}
        Path(self.out).write_text(json.dumps(found), encoding="utf-8")


def anomaly(notes: Notes, script: Callable[[], None]) -> None:
    """Run the script in anomaly mode; the forward frames of the node come in a warning."""
    told: list[str] = []
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.showwarning = lambda message, *_, **__: told.append(str(message))
        warnings.simplefilter("always")
        try:
            script()
        except RuntimeError as error:
            found = NAN_FOUND.search(str(error))
            if found:
                text = next((text for text in reversed(told) if "Error detected in" in text), "")
                frames = [(match["file"], int(match["line"])) for match in FRAME.finditer(text)]
                notes.write(frames, op=f"node:{found['node']}", module="by line")
            raise


def hooks(notes: Notes, script: Callable[[], None]) -> None:
    """Run the script with a hook on each leaf module that reads its output."""
    names: dict[int, str] = {}
    depth: list[int] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        if not depth:
            names.update((id(child), name) for name, child in module.named_modules())
        depth.append(id(module))

    def leave(module: torch.nn.Module, _: Any, output: Any) -> None:
        depth.pop()
        if next(module.children(), None) is None and any(map(is_bad, tree_leaves(output))):
            frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()]
            notes.write(frames, op=None, module=without_wrappers(names.get(id(module))))
            raise Alarm

    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave)
    script()


def underflow(notes: Notes, script: Callable[[], None]) -> None:
    """Run the script with transformers' debugger on each root module."""
    from transformers.debug_utils import DebugUnderflowOverflow

    class Debugger(DebugUnderflowOverflow):  # type: ignore[misc]
        def dump_saved_frames(self) -> None:
            """Note the last module that it prints."""
            heads = [text.strip().splitlines() for text in self.frames]
            words = [line for lines in heads for line in lines if len(line.split()) <= 2]
            last = words[-1].split() if words else []
            frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()]
            notes.write(frames, op=None, module=without_wrappers(last[0] if len(last) == 2 else ""))

    seen: set[int] = set()
    depth: list[int] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        if not depth and id(module) not in seen:
            seen.update(map(id, module.modules()))
            Debugger(module)
        depth.append(id(module))

    register_module_forward_pre_hook(enter)
    register_module_forward_hook(lambda *_: depth.pop() and None, always_call=True)
    script()


def is_bad(value: Any) -> bool:
    """Tell whether a value is a tensor with a NaN or an infinity."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())


def without_wrappers(name: str | None) -> str | None:
    """Return a module's name without what DDP and torch.compile add."""
    return name and ".".join(part for part in name.split(".") if part not in {"module", "_orig_mod"})


def main() -> None:
    """Run SCRIPT under TOOL."""
    _, tool, out, script, *rest = sys.argv
    script = str(Path(script).resolve())
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).parent)
    peers = {"anomaly": anomaly, "hooks": hooks, "underflow": underflow}
    peers[tool](Notes(out, sys.path[0]), lambda: runpy.run_path(script, run_name="__main__") and None)


if __name__ == "__main__":
    main()

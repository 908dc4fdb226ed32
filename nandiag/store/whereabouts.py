"""Where the workers of a run stood: their own word, their stacks by signal, and their newest sign of life (reader).

Everything is bounded, and what is torn or foreign counts as not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from nandiag.events import Listening, Record
from nandiag.events.forms import build
from nandiag.events.standing import CRASHED, ISSUED, FrameFact, NewCall, Standing
from nandiag.store.files import open_regular
from nandiag.store.layout import RunFolder, calls_of, parse_rank_file, pulse_of, stacks_of, standing_of

MAX_STANDING = 4 * 1024 * 1024
MAX_STACKS = 512 * 1024
MAX_CALLS = 256 * 1024
MOST_CALLS = 64
MOST_FRAMES = 64
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$')
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")


def read_standing(rank_file: Path) -> Standing | None:
    """Return what the worker of this event file wrote of where it stands, None where there is nothing to be read.

    Kinds of calls that it wrote later are added: it may have ended in one of them.
    """
    standing = Standing(CRASHED, 0.0, 0, 0)
    try:
        with open_regular(standing_of(rank_file)) as file:
            standing = build(Standing, json.loads(file.read(MAX_STANDING)))
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    later = [new for new in _new_calls(rank_file) if new.time > standing.time]
    if not later:
        return None if standing.why == CRASHED else standing
    groups = {(group.name, group.life): group for group in standing.groups}
    groups.update({(new.group.name, new.group.life): new.group for new in later if new.group is not None})
    return replace(
        standing,
        why=CRASHED,
        step=later[-1].call.step or 0,
        # Whether they returned is not known.
        calls=(*standing.calls, *(replace(new.call, state=ISSUED) for new in later)),
        groups=tuple(groups.values()),
        stack=(),
    )


def _new_calls(rank_file: Path) -> list[NewCall]:
    found: list[NewCall] = []
    try:
        with open_regular(calls_of(rank_file)) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - MAX_CALLS, 0))
            lines = file.read(MAX_CALLS).splitlines()
    except OSError:
        return found
    for line in lines[-MOST_CALLS:]:
        # The first line may be cut off, the last one torn.
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            found.append(build(NewCall, json.loads(line)))
    return found


def read_stack(rank_file: Path, records: tuple[Record, ...]) -> tuple[FrameFact, ...]:
    """Return the main thread's stack of the newest dump, innermost frame first; empty where none was asked for."""
    try:
        with open_regular(stacks_of(rank_file)) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - MAX_STACKS, 0))
            text = file.read(MAX_STACKS).decode("utf-8", errors="replace")
    except OSError:
        return ()
    library = next((one.event.library for one in records if isinstance(one.event, Listening)), ())
    return main_stack(text, library)


def forget_stacks(folder: RunFolder, workers: Collection[tuple[int, int, int]]) -> None:
    """Empty what these workers answered: they went on since, and are there no more. Each still writes at the end."""
    with contextlib.suppress(OSError), os.scandir(folder.ranks) as entries:
        paths = [stacks_of(Path(entry.path)) for entry in entries if parse_rank_file(entry.name) in workers]
        for path in paths:
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)))


def main_stack(text: str, library: tuple[str, ...]) -> tuple[FrameFact, ...]:
    """Return the frames of the main thread in what faulthandler wrote: the last thread it names begins in a module."""
    threads: list[list[FrameFact]] = []
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if _THREAD.match(line):
            threads.append([])
        elif frame and threads and len(threads[-1]) < MOST_FRAMES:
            file, number, function = frame.groups()
            threads[-1].append(FrameFact(file, int(number), function, _kind(file, library)))
    told = [frames for frames in threads if frames]
    mains = [frames for frames in told if frames[-1].function == "<module>"]
    return tuple((mains or told or [[]])[-1])


def _kind(file: str, library: tuple[str, ...]) -> str:
    if library and file.startswith(library[0]):
        return "torch"
    if file.startswith(("<", library[-1] if library else "<")):
        return "internal"
    if _PACKAGES.search(file):
        return "library"
    return "internal" if file.startswith(library) else "user"


def signs_of_life(folder: RunFolder) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """Return, by (rank, attempt, pid), what grows while a worker goes on: steps, moves and bytes told."""
    found: dict[tuple[int, int, int], tuple[int, int, int]] = {}
    try:
        with os.scandir(folder.ranks) as entries:
            for entry in entries:
                key = parse_rank_file(entry.name)
                if key is not None:
                    steps, moves = _pulse(pulse_of(Path(entry.path)))
                    found[key] = (steps, moves, entry.stat(follow_symlinks=False).st_size)
    except OSError:
        return found
    return found


def _pulse(path: Path) -> tuple[int, int]:
    try:
        with open_regular(path) as file:
            data = json.loads(file.read(4096))
        return int(data["steps"]), int(data.get("moves", 0))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return 0, 0

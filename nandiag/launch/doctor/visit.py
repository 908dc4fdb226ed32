"""A whole visit: look at the machine, start the trials, sum up (launcher)."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from nandiag import __version__
from nandiag.analysis.doctor import WRONG, Check, Doctor, devices, host, variables, versions
from nandiag.events import words
from nandiag.launch.doctor import child, machine, trials
from nandiag.launch.doctor.trials import Where
from nandiag.store.doctor import Installation, SelfTest

DEFAULT_RANKS = 2
_MOST_PLANTED = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asked for; ``None``: doctor chooses by what it finds."""

    nproc: int | None = None
    backend: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    log_folder: Path = Path()


def visit(asked: Asked, environ: Mapping[str, str], say: Callable[[str], None]) -> Doctor:
    """Return all checks; ``say`` is told what is being done, for it takes seconds."""
    say("looking at this machine")
    with ThreadPoolExecutor(1) as pool, child.ended_on_error():
        # Neither measures time, so they may run side by side; the self-test does and runs alone.
        planted = pool.submit(trials.planted, min(asked.nproc or DEFAULT_RANKS, _MOST_PLANTED))
        found = trials.installation()
        seen = machine.look(asked.log_folder)
        where = chosen(asked, found)
        first = [*versions.checks(found), *devices.checks(found)]
        first += host.checks(seen, environ, where.nproc)
        first += variables.checks(environ, found.torch, seen.interfaces)
        say("planting a NaN under nandiag run")
        last = planted.result()
    say(f"testing collectives on {where.nproc} ranks with {where.backend}")
    tested, measured = _tested(where, found)
    hosts = {socket.gethostname(), *(rank.host for rank in (measured.ranks if measured else ()))}
    return Doctor((*first, *tested, last), _facts(found, where), tuple(sorted(hosts)), measured)


def chosen(asked: Asked, found: Installation) -> Where:
    """Return ranks and backend: as asked for, else NCCL with a rank a GPU, else gloo with two."""
    gpus = found.usable
    usable = gpus and "nccl" in found.backends and found.cuda is not None and not found.trouble
    backend = asked.backend or ("nccl" if usable and (asked.nproc or 0) <= gpus else "gloo")
    nproc = asked.nproc or (gpus if backend == "nccl" and gpus else DEFAULT_RANKS)
    return replace(Where(nproc, backend), nnodes=asked.nnodes, node_rank=asked.node_rank, endpoint=asked.endpoint)


def _tested(where: Where, found: Installation) -> tuple[list[Check], SelfTest | None]:
    why = _cannot(where, found)
    if why is not None:
        return [Check("self-test", WRONG, *why)], None
    return trials.selftest(where)


def _cannot(where: Where, found: Installation) -> tuple[str, str] | None:
    """Return why this backend cannot work here and what to do, ``None`` when it can."""
    if found.torch is None:
        return "torch cannot be imported", "Mend torch first."
    if where.backend not in found.backends:
        return f"this torch is built without {where.backend}", "Give --backend gloo, or install a build that has it."
    if where.backend == "nccl" and found.usable < where.nproc:
        seen = f"NCCL wants a GPU a rank: {where.nproc} ranks, and torch sees {words.count(found.usable, 'GPU')}"
        return seen, "Give --nproc N with as many ranks as GPUs, or --backend gloo."
    return None


def _facts(found: Installation, where: Where) -> dict[str, str]:
    facts = {
        "nandiag": __version__,
        "python": found.python,
        "torch": found.torch,
        "cuda": found.cuda,
        "rocm": found.rocm,
        "nccl": found.nccl_loaded or found.nccl_compiled,
        "driver": found.driver,
        "system": platform.platform(),
        "gpus": ", ".join(gpu.name for gpu in found.gpus) or None,
        "self-test": f"{where.backend}, {words.count(where.nproc, 'rank')} a node, {words.count(where.nnodes, 'node')}",
    }
    return {name: text for name, text in facts.items() if text}

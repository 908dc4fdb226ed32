"""A process of doctor's own: started in a session of its own, ended with everything it started (launcher)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nandiag.settings import environment

ROOT = Path(__file__).resolve().parents[3]
# What an outer launcher may have set, and would make of our workers ranks of its own.
_FOREIGN = ("NANDIAG_", "TORCHELASTIC_", "PET_")
_FOREIGN_NAMES = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT",
})  # fmt: skip
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True, slots=True)
class Done:
    """How a process ended; ``code`` is ``None`` when it had to be ended after its time."""

    code: int | None
    out: str
    err: str


def run(words: Sequence[str], seconds: float, added: Mapping[str, str] | None = None) -> Done:
    """Run ``python WORDS`` for at most ``seconds``."""
    with subprocess.Popen(  # noqa: S603 - the words are our own
        [sys.executable, *words],
        env={**clean(environment()), **(added or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return Done(None, *process.communicate())
        except BaseException:
            _end(process)
            raise
        finally:
            _running.discard(process)
    return Done(process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ended_on_error() -> Iterator[None]:
    """End every process of ours when the body is left by an error or an interrupt, so that nobody waits for them."""
    try:
        yield
    except BaseException:
        for process in tuple(_running):
            _end(process)
        raise


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process of ours: no outer launcher's words, and nandiag where it can be imported."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }  # fmt: skip
    paths = [str(ROOT), *(part for part in kept.get("PYTHONPATH", "").split(os.pathsep) if part)]
    return {"OMP_NUM_THREADS": "1", **kept, "PYTHONPATH": os.pathsep.join(paths)}

"""Runs a command in a process group and an environment that is known, and never longer than it may."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

# What a terminal, a CI service or an outer launcher may have set, and what would change the output or the run.
FOREIGN = ("NANDIAG_", "PET_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MASTER_", "NCCL_", "TORCH_NCCL_")
FOREIGN_NAMES = {
    "CI", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "GROUP_RANK", "LINES", "LOCAL_RANK", "NO_COLOR",
    "PYTHONPATH", "PYTHONSTARTUP", "PY_COLORS", "RANK", "TORCH_DISTRIBUTED_DEBUG", "WORLD_SIZE",
}  # fmt: skip


class TimedOut(Exception):  # noqa: N818  (it is what happened, and the command's stderr is its message)
    """The command did not end in time and was killed, with everything in its process group."""


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without what a launcher, a CI service or a terminal put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept = {name: value for name, value in kept.items() if name not in FOREIGN_NAMES}
    return {**kept, "OMP_NUM_THREADS": "1", "TERM": "dumb"}


def run(command: list[str], cwd: Path, seconds: float, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``command`` to its end and return it with its output as text.

    Raises:
        TimedOut: after ``seconds``; the message is what it wrote to stderr.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise TimedOut(process.communicate()[1]) from None
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a command that leads a process group, with everything it started in that group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()

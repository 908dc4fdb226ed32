"""What all tests share: the real command in a process of its own, with a time-out and an environment that is known."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What a terminal, a CI service or an outer launcher may have set, and what would change the output or the run.
FOREIGN = ("NANDIAG_", "PET_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MASTER_", "NCCL_", "TORCH_NCCL_")
FOREIGN_NAMES = {
    "CI", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "GROUP_RANK", "LINES", "LOCAL_RANK", "NO_COLOR",
    "PYTHONPATH", "PYTHONSTARTUP", "PY_COLORS", "RANK", "TORCH_DISTRIBUTED_DEBUG", "WORLD_SIZE",
}  # fmt: skip


@pytest.fixture(scope="session")
def known_environment():
    """The environment of this process without anything that a launcher, a CI service or a terminal put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept = {name: value for name, value in kept.items() if name not in FOREIGN_NAMES}
    return {**kept, "OMP_NUM_THREADS": "1", "TERM": "dumb"}


@pytest.fixture
def nandiag(known_environment):
    """Run ``python -m nandiag WORDS`` and return the finished process, with its stdout and stderr as text.

    After ``timeout`` seconds the command and all its workers are killed and the test fails.
    """

    def run(*words, cwd=ROOT, timeout=120, env=None):
        command = [sys.executable, "-m", "nandiag", *map(str, words)]
        with subprocess.Popen(
            command,
            cwd=cwd,
            env={**known_environment, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                kill_group(process)
                pytest.fail(f"{' '.join(command)} did not end within {timeout} s:\n{process.communicate()[1]}")
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    return run


def kill_group(process):
    """Kill a command that leads a process group, with everything it started in that group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()

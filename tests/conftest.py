"""What all tests share: the real command in a process of its own, with a time-out and an environment that is known."""

import sys
from pathlib import Path

import pytest
from scoring import commands

ROOT = Path(__file__).resolve().parents[1]
# All others start real worker processes.
TOGETHER = ("tests/unit/", "tests/golden/", "tests/fuzz/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests out by file (``-n 2 --dist loadscope``), those that start processes as if they were one file.

    They take the cores that there are, and so come one after another.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """The files of tests, as xdist shares out scopes."""

        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if file.startswith(TOGETHER) else "processes"

    return ByFile(config, log)


@pytest.fixture(scope="session")
def known_environment():
    """The environment of this process without anything that a launcher, a CI service or a terminal put there."""
    return commands.clean_environment()


@pytest.fixture
def nandiag(known_environment):
    """Run ``python -m nandiag WORDS`` and return the finished process, with its stdout and stderr as text.

    After ``timeout`` seconds the command and all its workers are killed and the test fails.
    """

    def run(*words, cwd=ROOT, timeout=120, env=None):
        command = [sys.executable, "-m", "nandiag", *map(str, words)]
        try:
            return commands.run(command, cwd, timeout, {**known_environment, **(env or {})})
        except commands.TimedOut as late:
            pytest.fail(f"{' '.join(command)} did not end within {timeout} s:\n{late}")

    return run

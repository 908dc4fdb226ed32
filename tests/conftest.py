"""What all tests share: the real command in a process of its own, with a time-out and an environment that is known."""

import sys
from pathlib import Path

import pytest
from scoring import commands

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(items):
    """Keep the tests that start processes with one worker: they take the cores that there are, one after another."""
    for item in items:
        if item.get_closest_marker("integration") or item.get_closest_marker("samples"):
            item.add_marker(pytest.mark.xdist_group("processes"))


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

"""What all tests share: the real command in a process of its own, with a time-out and an environment that is known."""

import gc
from pathlib import Path

import pytest
from scoring import commands

from tests.launchers import LateError, Launchers

ROOT = Path(__file__).resolve().parents[1]
# All others start real worker processes.
TOGETHER = ("tests/unit/", "tests/golden/", "tests/fuzz/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests out by file (``-n 2 --dist loadscope``), those that start processes as if they were two files.

    They take the cores that there are: of those that ask what happens when, one comes after another, and none beside
    them but the samples, or what starts no process. The longest comes first.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        """The files of tests, as xdist shares out scopes."""

        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if file.startswith(TOGETHER) else "/".join(file.split("/")[:2])

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="module")
def none_but_its_own_objects():
    """What was there before a file's tests is left out of their garbage collections and of what a replay looks through.

    A process that has run a thousand tests holds a heap that each of these goes over: it doubled the time of the tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def known_environment():
    """The environment of this process without anything that a launcher, a CI service or a terminal put there."""
    return commands.clean_environment()


@pytest.fixture(scope="session")
def launchers(known_environment):
    """Both launchers in a process that forks them: a run costs no import of torch beside its workers'."""
    found = Launchers(known_environment)
    yield found
    found.close()


@pytest.fixture(scope="session")
def launch(launchers, known_environment):
    """Run ``nandiag WORDS`` or ``torchrun WORDS``; returns the process, with its stdout and stderr as text (or bytes).

    After ``timeout`` seconds the command and all its workers are killed and the test fails.
    """

    def run(*words, cwd=ROOT, timeout=120, env=None, text=True):
        words = [str(word) for word in words]
        try:
            done = launchers.finished(words, cwd, {**known_environment, **(env or {})}, timeout)
        except LateError as late:
            pytest.fail(f"{' '.join(words)} did not end within {timeout} s:\n{late}")
        if text:
            done.stdout, done.stderr = (told.decode(errors="replace") for told in (done.stdout, done.stderr))
        return done

    return run


@pytest.fixture(scope="session")
def nandiag(launch):
    """Run ``nandiag WORDS``: see ``launch``."""

    def run(*words, **more):
        return launch("nandiag", *words, **more)

    return run

"""What the tests of files read of what was written, and how long they wait for another thread."""

from pathlib import Path

SECONDS = 20


def lines(name):
    return Path(name).read_text(encoding="utf-8").splitlines()

"""Looks right before and right after each replay."""

import pytest

from nandiag.runtime.replay.examine import Examiner


@pytest.fixture
def around_replays(work, monkeypatch):
    """Arm, and compare what ``see()`` returns right before and right after each replay; returns the list of pairs."""

    def watch(see, **options):
        worker = work(**options)
        pairs = []
        examine = Examiner.examine

        def compared(self, case):
            before = see()
            looked = examine(self, case)
            pairs.append((before, see(), looked))
            return looked

        monkeypatch.setattr(Examiner, "examine", compared)
        worker.pairs = pairs
        return worker

    return watch

"""A folder of the test's own to write files in."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that the process stands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

"""A script that asks, as it runs, what its own text says about an expression of it."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.unit.runtime.evidence.probing import probe


@pytest.fixture
def run(tmp_path):
    """Run the text of a script, which calls ``probe``, and return what it leaves in ``found``."""

    def run(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        space = {"probe": probe, "checkpoint": checkpoint, "torch": torch}
        exec(compile(text, str(path), "exec"), space)  # noqa: S102
        return space["found"]

    return run

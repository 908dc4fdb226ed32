"""Harm of a step whose gradients are exchanged in hooks, with updates by hand: who was first, and the line."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180), pytest.mark.slow]

SCRIPT = Path(__file__).with_name("overlapped.py")
CASES = [
    ("within", 0, [0], "# zero rows", "inferred"),
    ("within", 1, [1], "# zero rows", "inferred"),
    ("behind", 0, [0], "# zero rows", "reproduced"),
    ("behind", 1, [1], "# zero rows", "reproduced"),
    ("direction", 0, [0, 1], "# no direction", "inferred"),
]


@pytest.mark.parametrize(("how", "faulty", "ranks", "comment", "confidence"), CASES)
def test_the_first_rank_and_its_line_are_named(nandiag, tmp_path, how, faulty, ranks, comment, confidence):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, how, faulty)
    verdict = json.loads(file.read_text())["verdict"]
    origin = verdict["origin"]
    assert (origin["ranks"], origin["step"], verdict["cause"]) == (ranks, 3, "division_by_zero"), done.stderr
    assert comment in origin["source"], done.stderr
    assert (verdict["confidence"], done.returncode) == (confidence, 3), done.stderr

"""What breaks behind gradients that the script itself sums over the ranks is told of the rank that broke it."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("averaged.py")
SLOW = pytest.mark.slow
BOTH, SECOND = [0, 1], [1]
CASES = [
    # Rank 0 alone would have divided 0 by its own norm, which is 0: what the ranks had summed is not.
    ("other", "each", SECOND, "inferred"),
    pytest.param("other", "flat", SECOND, "inferred", marks=SLOW),
    ("none", "each", BOTH, "inferred"),
    pytest.param("none", "flat", BOTH, "inferred", marks=SLOW),
    ("own", "each", SECOND, "reproduced"),
    pytest.param("own", "flat", SECOND, "reproduced", marks=SLOW),
    pytest.param("before", "each", SECOND, "reproduced", marks=SLOW),
    ("before", "flat", SECOND, "reproduced"),
]


@pytest.mark.parametrize(("fault", "how", "ranks", "confidence"), CASES)
def test_the_rank_that_broke_them_is_named(fault, how, ranks, confidence, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, fault, how)
    verdict = json.loads(file.read_text())["verdict"]
    origin, lines = verdict["origin"], SCRIPT.read_text().splitlines()
    assert (origin["ranks"], origin["step"], verdict["confidence"]) == (ranks, 3, confidence), done.stderr
    assert lines[origin["line"] - 1].endswith(f"# {fault}"), done.stderr
    assert done.returncode == 3, done.stderr

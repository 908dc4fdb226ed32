"""What breaks behind gradients that the script itself sums over the ranks is told of the rank that broke it."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("averaged.py")
FAULTS, HOWS = ("other", "none", "own", "before"), ("each", "flat", "later", "parts", "ddp")
FAST = {("other", "each"), ("own", "flat")}


def every(cases):
    return [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow) for one in cases]


def verdict_of(nandiag, folder, *words):
    file = folder / "report.json"
    done = nandiag("run", "--nproc-per-node", 2, "--log-dir", folder, "--json", file, *words)
    return json.loads(file.read_text())["verdict"], done


@pytest.mark.parametrize(("fault", "how"), every((fault, how) for how in HOWS for fault in FAULTS))
def test_the_rank_that_broke_them_is_named(fault, how, nandiag, tmp_path):
    """Rank 0 alone would have divided 0 by its own norm, which is 0: what the ranks had summed is not."""
    verdict, done = verdict_of(nandiag, tmp_path, SCRIPT, fault, how)
    origin, lines = verdict["origin"], SCRIPT.read_text().splitlines()
    ranks = [0, 1] if fault == "none" else [1]
    assert (origin["ranks"], origin["step"], verdict["confidence"]) == (ranks, 3, "reproduced"), done.stderr
    assert lines[origin["line"] - 1].endswith(f"# {fault}"), done.stderr
    assert not any("by itself" in text for text in verdict["evidence"]), done.stderr
    assert done.returncode == 3, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_what_ranks_cannot_look_at_together_is_inferred(how, nandiag, tmp_path):
    """The run goes on: none waits for another, and each has its own part of the gradients."""
    verdict, done = verdict_of(nandiag, tmp_path, "--on-anomaly", "continue", SCRIPT, "none", how)
    assert (verdict["origin"]["step"], verdict["confidence"]) == (3, "inferred"), done.stderr
    assert any("this rank's own gradients" in text for text in verdict["evidence"]), done.stderr
    assert done.returncode == 0, done.stderr

"""A rank that ends in the middle of a joint replay: the others end too, and the report says what was known."""

import json
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("endings.py")
WAYS = Path(__file__).with_name("ways.py")


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("how", ["killed", "memory"])
def test_a_rank_that_is_lost_in_a_joint_replay_ends_it_on_all(how, nproc, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, SCRIPT, how)
    report = json.loads(file.read_text())
    origin = report["verdict"]["origin"]
    assert done.returncode in ((1, 3) if how == "killed" else (3,)), done.stderr
    assert report["verdict"]["anomaly"] is True, done.stderr
    assert (origin["step"], origin["ranks"], origin["phase"]) == (3, [0], "loss"), done.stderr
    assert any("could not be run again" in note or "could not go on" in note for note in report["notes"]), report[
        "notes"
    ]
    if how == "killed":
        assert "SIGKILL" in done.stderr, done.stderr
    else:
        assert "out of memory" in done.stderr, done.stderr


@pytest.mark.slow
def test_training_goes_on_after_a_joint_replay_that_broke_off_on_all(nandiag, tmp_path):
    """FSDP2 gathered weights for the replay: they are let go again."""
    words = ("--on-anomaly", "continue", "--nproc-per-node", 2, "--log-dir", tmp_path, SCRIPT, "alike")
    done = nandiag("run", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("went on to the end") == 2


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_thirty_two_ranks_are_told_apart_soon(way, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--nproc-per-node", 32, "--log-dir", tmp_path, "--json", file, WAYS, way, 17)
    done = nandiag("run", *words, timeout=380)
    told = time.time()
    report = json.loads(file.read_text())
    assert report["verdict"]["origin"]["ranks"] == [17], done.stderr
    assert report["verdict"]["cause"] == "division_by_zero", done.stderr
    assert told - report["verdict"]["origin"]["time"] < 20

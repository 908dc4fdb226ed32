"""A rank that ends in the middle of a joint replay: the others end too, and the report says what was known."""

import json
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).with_name("endings.py")
WAYS = Path(__file__).with_name("ways.py")
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node"]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("how", ["killed", "memory", "backend"])
def test_a_rank_that_is_lost_in_a_joint_replay_ends_it_on_all(how, nproc, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--on-anomaly", "stop", "--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, SCRIPT, how)
    done = nandiag("run", *words)
    report = json.loads(file.read_text())
    origin = report["verdict"]["origin"]
    assert done.returncode in ((1, 3) if how == "killed" else (3,)), done.stderr
    assert report["verdict"]["anomaly"] is True, done.stderr
    assert (origin["step"], origin["ranks"], origin["phase"]) == (3, [0], "loss"), done.stderr
    if how == "killed":  # the launcher ends the others at once, as a rule before they have more to say
        assert "SIGKILL" in done.stderr, done.stderr
    else:
        notes = " ".join(report["notes"])
        assert "step 3 could not be run again: OutOfMemoryError" in notes, notes
        assert "rank 1 could not go on" in notes, notes


def bits(done):
    return sorted(line for line in done.stdout.splitlines() if "went on to the end" in line)


WAYS_ON = [("fsdp2", 2), ("fsdp1", 2), ("hsdp", 4), ("tp", 2), ("pipeline", 2), ("pipeline", 4)]
GOING_ON = [(way, nproc, how, "continue") for way, nproc in WAYS_ON for how in ("memory", "alike", "hooks", "none")]
GOING_ON += [("fsdp2", 2, "memory", "auto"), ("tp", 2, "hooks", "skip")]
GOING_ON += [("pipeline", 4, how, policy) for how in ("memory", "hooks") for policy in ("auto", "skip")]
FAST = ("fsdp2", 2, "memory", "continue")


def one_fails(way, nproc, how, policy):
    """Whether a rank that fails in a replay makes one.

    Stages of a pipeline replay alone; the last has the harm, and finds it before its backward.
    """
    if how == "none" or way == "fsdp1":
        return False
    return way != "pipeline" or policy == "skip" or how == "alike" or (nproc, how) == (2, "memory")


@pytest.mark.parametrize(
    ("way", "nproc", "how", "policy"),
    [pytest.param(*one, marks=() if one == FAST else pytest.mark.slow) for one in GOING_ON],
)
def test_training_goes_on_with_the_same_bits_after_a_joint_replay_that_broke_off(
    way, nproc, how, policy, launch, nandiag, tmp_path
):
    """Neither a rank that fails alone, nor one whose replay goes well, is in the way of any other."""
    file = tmp_path / "report.json"
    words = ("--nproc-per-node", nproc, "--log-dir", tmp_path)
    same = "left_out" if policy == "skip" else "none"
    plain = launch(*TORCHRUN, nproc, SCRIPT, same, way, cwd=tmp_path)
    done = nandiag("run", "--on-anomaly", policy, "--json", file, *words, SCRIPT, how, way)
    assert (plain.returncode, done.returncode) == (0, 0), done.stderr
    assert len(bits(plain)) == nproc, plain.stderr
    assert bits(done) == bits(plain), done.stderr
    notes = json.loads(file.read_text())["notes"]
    assert any("out of memory" in note for note in notes) is one_fails(way, nproc, how, policy), notes
    assert any("FSDP1 could not" in note for note in notes) is (way == "fsdp1"), notes
    assert not [note for note in notes if "do not judge their steps together" in note], notes


@pytest.mark.slow
def test_a_backend_of_the_scripts_own_is_not_replayed_jointly_where_the_run_goes_on(nandiag, tmp_path):
    """Nobody could be got out of a collective there whose peer failed."""
    file = tmp_path / "report.json"
    words = ("--on-anomaly", "continue", "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file)
    done = nandiag("run", *words, SCRIPT, "backend")
    assert done.returncode == 0, done.stderr
    assert len(bits(done)) == 2, done.stderr
    notes = " ".join(json.loads(file.read_text())["notes"])
    assert "a rank that fails in a joint replay would hold up the others" in notes
    assert "every op was watched" in notes


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

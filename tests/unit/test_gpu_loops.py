"""The training loops of scripts/gpu_check say what is right of them; the device itself is not here."""

import pytest
from gpu import checks, costs
from gpu.launched import Launched

FAULTY = [path for path in checks.LOOPS if path.name.startswith("faulty_")]
HEALTHY = [path for path in checks.LOOPS if path.name.startswith("healthy_")]


def test_there_are_loops_of_both_sorts():
    assert len(FAULTY) >= 50
    assert len(HEALTHY) >= 12


@pytest.mark.parametrize("path", checks.LOOPS, ids=lambda path: path.stem)
def test_a_loop_says_what_is_right_of_it(path):
    truth = checks.Truth.of(path)
    assert truth.clean == (path in HEALTHY)
    assert truth.clean or truth.lines or "# line: unseen" in path.read_text()
    assert truth.workers in {1, 2}


def told(**origin):
    verdict = {"anomaly": bool(origin), "origin": origin or None}
    return Launched(0, "", report={"verdict": verdict})


def test_a_verdict_is_held_against_the_marks(tmp_path):
    script = tmp_path / "faulty_one.py"
    script.write_text("# nproc: 1\n# expect: rank=0 step=5|6\nx = f(\n    1,\n)  # ORIGIN\n")
    truth = checks.Truth.of(script)
    assert truth.lines == {3, 4, 5}
    right = told(rank=0, step=6, line=3)
    assert not any(checks._verdict(truth, frozenset(), right).values())
    for other in (told(), told(rank=1, step=6, line=3), told(rank=0, step=4, line=3), told(rank=0, step=6, line=2)):
        assert any(checks._verdict(truth, frozenset(), other).values())


def test_an_alarm_on_a_healthy_loop_is_wrong(tmp_path):
    script = tmp_path / "healthy_one.py"
    script.write_text("# expect: clean\n")
    truth = checks.Truth.of(script)
    assert checks._verdict(truth, frozenset(), told()) == {"alarm": False}
    assert checks._verdict(truth, frozenset(), told(rank=0)) == {"alarm": True}
    assert checks._verdict(truth, frozenset(), Launched(0, "")) == {"alarm": True}


def test_each_turn_times_the_ways_the_other_way_round():
    jobs = costs.jobs_of(["mlp"], 2, peers=False)
    assert [way for _, way in jobs] == [*costs.USUAL, *costs.USUAL[::-1]]

"""Ranks that wait in vain, with real workers on gloo: who is named, with which lines, and how soon."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "hangs" / "waits.py"


def line_of(mark):
    """The line of the script that bears a mark."""
    lines = SCRIPT.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


@pytest.fixture
def waits(nandiag, tmp_path):
    """Run the script and return its report, with the process."""

    def run(way, *options, nproc=2, timeout=None):
        words = [] if timeout is None else [timeout]
        folder = tmp_path / f"{way}-{len(list(tmp_path.iterdir()))}"
        done = nandiag("run", "--log-dir", folder / "logs", "--json", folder.with_suffix(".json"), *options,
                       "--nproc", nproc, SCRIPT, way, *words, timeout=120)  # fmt: skip
        report = json.loads(folder.with_suffix(".json").read_text())
        return done, report

    return run


def lines(hang):
    return {stand["ranks"][0]: stand["place"] and stand["place"]["line"] for stand in hang["stands"]}


def test_a_call_that_one_rank_left_out_is_named_with_both_lines_after_the_time_out(waits):
    done, report = waits("leave_out", timeout=5)
    hang = report["hang"]
    assert done.returncode == 1
    assert (hang["slug"], hang["behind"], hang["waiting"]) == ("collective_missing", [1], [0])
    assert hang["step"] == 4
    assert lines(hang) == {0: line_of("GRADIENTS"), 1: line_of("AFTER")}
    assert f"rank 1 left out all_reduce at waits.py:{line_of('GRADIENTS')} in step 4" in report["verdict"]["summary"]
    assert "error[collective_missing]" in done.stderr
    assert report["verdict"]["anomaly"] is False
    assert {rank["state"] for rank in report["ranks"].values()} == {"victim"}


@pytest.mark.parametrize("way", ["return_early", "cut", "cut_by_a_thread"])
def test_a_rank_that_returns_early(way, waits):
    _, report = waits(way)
    hang = report["hang"]
    assert (hang["slug"], hang["behind"], hang["sequence"]) == ("collective_missing", [1], 4)
    assert "left the script" in hang["summary"]
    assert lines(hang)[0] == line_of("MEAN")


def test_sizes_that_differ_end_a_rank_in_cpp_and_are_named_all_the_same(waits):
    _, report = waits("shapes", timeout=5)
    hang = report["hang"]
    assert hang["slug"] == "collective_mismatch"
    assert "float32 [4] on rank 0, float32 [5] on rank 1" in hang["summary"]
    assert lines(hang) == {0: line_of("SHAPES"), 1: line_of("SHAPES")}


def test_a_run_that_stands_still_is_ended_and_a_rank_stuck_in_c_is_found_by_its_stack(waits):
    began = time.monotonic()
    done, report = waits("in_c", "--hang-timeout", 6)
    assert time.monotonic() - began < 100
    assert done.returncode == 1
    assert "no rank made progress for 6 s" in done.stderr
    hang = report["hang"]
    assert (hang["slug"], hang["behind"], hang["seconds"]) == ("collective_missing", [1], 6)
    assert lines(hang) == {0: line_of("MEAN"), 1: line_of("IN_C")}


def test_a_run_that_goes_well_has_nothing_to_tell_and_leaves_no_empty_stacks(waits):
    done, report = waits("well", "--hang-timeout", 30)
    assert (done.returncode, report["hang"]) == (0, None)


@pytest.mark.slow
def test_a_start_that_takes_longer_than_the_time_out_is_no_hang(waits):
    done, report = waits("slow_start", "--hang-timeout", 5)
    assert (done.returncode, report["hang"]) == (0, None), done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "slug", "behind", "expected"),
    [
        ("loop", "collective_missing", [1], {0: "MEAN"}),
        ("lock", "collective_missing", [1], {0: "MEAN", 1: "LOCK"}),
        ("loader", "collective_missing", [1], {0: "MEAN", 1: "LOADER"}),
        ("source", "collective_mismatch", [], {0: "SOURCE", 1: "SOURCE"}),
        ("no_barrier", "collective_missing", [1], {0: "BARRIER", 1: "SLEEP"}),
        ("no_send", "message_missing", [1], {0: "RECV", 1: "MEAN"}),
        ("groups", "collective_order", [], {0: "GROUPS"}),
        ("ddp", "collective_missing", [1], {0: "BACKWARD"}),
    ],
)
@pytest.mark.parametrize("how", ["hang-timeout", "time-out"])
def test_other_ways_to_wait(way, slug, behind, expected, how, waits):
    if how == "time-out" and way == "groups":
        pytest.skip("new groups have a time-out of their own, of half an hour")
    options, timeout = (["--hang-timeout", 6], None) if how == "hang-timeout" else ([], 5)
    done, report = waits(way, *options, timeout=timeout)
    assert done.returncode == 1
    hang = report["hang"]
    assert hang["slug"] == slug, done.stderr[-3000:]
    assert hang["behind"] == behind
    assert {rank: line for rank, line in lines(hang).items() if rank in expected} == {
        rank: line_of(mark) for rank, mark in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("way", ["leave_out", "lock", "return_early", "shapes", "ddp"])
def test_four_ranks(way, waits):
    _, report = waits(way, "--hang-timeout", 10, nproc=4, timeout=40)
    assert report["hang"]["behind"] == [1]


@pytest.mark.slow
def test_a_run_that_the_user_ends_tells_who_waited(known_environment, tmp_path):
    command = [sys.executable, "-m", "nandiag", "run", "--log-dir", tmp_path / "logs", "--json", tmp_path / "r.json",
               "--nproc", "2", SCRIPT, "lock"]  # fmt: skip
    with subprocess.Popen(
        command, env=known_environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("logs/*/ranks/*.standing"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=90)
    hang = json.loads((tmp_path / "r.json").read_text())["hang"]
    assert hang is not None, stderr
    assert hang["behind"] == [1]
    assert process.returncode == 130

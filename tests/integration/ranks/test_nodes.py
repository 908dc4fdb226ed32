"""Two launchers on one machine, each with one worker: one run, one report, also where one of them is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).with_name("node.py")


@pytest.fixture
def start(known_environment, tmp_path):
    """Start both launchers, with a log folder for each; ``start("logs", "logs", steps=8)``."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "nandiag", "run", "--nnodes", "2", "--nproc", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "job"]
    started = []

    def start(*logs, steps):
        env = {**known_environment, "NANDIAG_ON_ANOMALY": "continue"}
        for log in logs:
            command = [*words, "--log-dir", log, SCRIPT, str(steps)]
            started.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=env))
        return started

    yield start
    for child in started:
        child.kill()
        child.wait()


def ends(children):
    return [child.communicate(timeout=120)[1].decode(errors="replace") for child in children]


def test_launchers_with_one_log_folder_make_one_run_and_one_report(start, tmp_path):
    children = start("logs", "logs", steps=8)
    said = ends(children)
    assert [child.returncode for child in children] == [0, 0], said
    (run,) = (path for path in (tmp_path / "logs").iterdir() if not path.name.startswith("."))
    report = json.loads((run / "report.json").read_text())
    assert [report["ranks"][rank]["state"] for rank in "01"] == ["finished", "finished"]
    origin = report["verdict"]["origin"]
    assert (origin["rank"], origin["step"], origin["op"]) == (1, 3, "aten.log.default")
    agents = [json.loads(path.read_text()) for path in (run / "agents").glob("*.json")]
    assert sorted((end["node_rank"], [one["rank"] for one in end["ranks"]]) for end in agents) == [(0, [0]), (1, [1])]
    full = [text for text in said if "error[" in text]
    (other,) = [text for text in said if "error[" not in text]
    assert len(full) == 1
    assert "rank 1, step 3" in full[0]
    assert "reports on all nodes" in other.splitlines()[-1]
    assert "another launcher" not in "".join(report["notes"])


@pytest.mark.slow
def test_separate_log_folders_hold_one_run_that_report_joins(start, tmp_path, nandiag):
    children = start("a", "b", steps=8)
    said = ends(children)
    assert [child.returncode for child in children] == [0, 0], said
    infos = [json.loads(next((tmp_path / base).glob("*/run.json")).read_text()) for base in "ab"]
    assert infos[0]["id"] == infos[1]["id"]
    joined = json.loads(nandiag("report", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert [joined["ranks"][rank]["state"] for rank in "01"] == ["finished", "finished"]
    assert (joined["verdict"]["origin"]["rank"], joined["verdict"]["origin"]["step"]) == (1, 3)
    assert not [note for note in joined["notes"] if "another launcher" in note or "different runs" in note]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_node_that_is_killed_is_named_and_the_other_reports(start, tmp_path, killed):
    children = start("logs", "logs", steps=3000)
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("pids-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    worker, launcher = map(int, (tmp_path / f"pids-{killed}").read_text().split())
    for pid in (launcher, worker):
        os.kill(pid, signal.SIGKILL)
    said = ends(children)
    assert sorted(child.returncode for child in children) == [-signal.SIGKILL, 1], said
    (file,) = (tmp_path / "logs").glob("*/report.json")
    report = json.loads(file.read_text())
    states = [report["ranks"][rank]["state"] for rank in "01"]
    assert states[killed] == "lost"
    assert states[1 - killed] == "victim"
    assert report["verdict"]["summary"].startswith(f"rank {killed} was lost with its launcher")
    left = next(text for child, text in zip(children, said, strict=True) if child.returncode == 1)
    assert f"rank {killed} was lost with its launcher" in left
    assert f"(pid {launcher}) is gone without an end" in left
    assert "error[" not in left


@pytest.mark.slow
def test_the_next_run_of_the_same_job_has_a_folder_of_its_own(start, tmp_path):
    for _ in range(2):
        children = start("logs", "logs", steps=2)[-2:]
        said = ends(children)
        assert [child.returncode for child in children] == [0, 0], said
    runs = [path for path in (tmp_path / "logs").iterdir() if not path.name.startswith(".")]
    assert [len(list((run / "ranks").glob("*.jsonl"))) for run in runs] == [2, 2]

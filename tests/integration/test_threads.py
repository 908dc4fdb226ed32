"""Every thread that a script may have, on two real ranks: no record is lost, mixed or waited for without end."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "runtime" / "threads.py"
STEPS, BAD = 60, 40


@pytest.fixture(scope="module")
def done(nandiag, tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    words = ["--log-dir", "logs", "--json", "report.json", "--on-anomaly", "continue", "--nproc-per-node", "2"]
    done = nandiag("run", *words, SCRIPT, "checkpoints", cwd=folder)
    done.report = json.loads((folder / "report.json").read_text())
    files = sorted(folder.glob("logs/*/ranks/*.jsonl"))
    done.events = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    return done


def test_the_script_ends_as_it_does_alone(done):
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("beside: True, alive: 0") == 2


def test_the_verdict_is_that_of_the_thread_that_trains(done):
    origin = done.report["verdict"]["origin"]
    assert (origin["rank"], origin["step"], origin["op"]) == (1, BAD, "aten.log.default")
    assert done.report["verdict"]["confidence"] == "reproduced"


def test_no_record_is_lost_or_mixed(done):
    assert len(done.events) == 2
    for events in done.events:
        (finished,) = [one for one in events if one["kind"] == "finished"]
        assert finished["steps"] == STEPS
        assert not [one for one in events if one["kind"] == "probe_dark"]
        assert {one["step"] for one in events if one["kind"] == "harm"} <= set(range(BAD, STEPS + 1))

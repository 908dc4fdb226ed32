"""The policies on two real ranks: all stop at the same step border, or all leave the same step out."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "runtime" / "policies.py"


@pytest.fixture
def run(nandiag, tmp_path):
    def start(what, *options):
        report = tmp_path / "report.json"
        words = ["--log-dir", str(tmp_path / "logs"), "--json", str(report), *options, "--nproc-per-node", "2"]
        done = nandiag("run", *words, SCRIPT, what, cwd=tmp_path, env={"TOLD": str(tmp_path)}, timeout=90)
        done.report = json.loads(report.read_text())
        done.told = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)}
        files = sorted((tmp_path / "logs").glob("*/ranks/*.jsonl"))
        done.events = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
        return done

    return start


def of_kind(events, kind):
    return [event for event in events if event["kind"] == kind]


def finite(told):
    return "NaN" not in json.dumps(told) and "Infinity" not in json.dumps(told)


@pytest.mark.parametrize(("what", "policy"), [("gradient", "auto"), ("loss", "stop")])
def test_all_ranks_stop_at_the_same_step_border(what, policy, run):
    done = run(what, "--on-anomaly", policy, "--max-restarts", "1")
    assert done.returncode == 3, done.stderr
    assert {rank: told["steps"] for rank, told in done.told.items()} == {0: 3, 1: 3}
    assert all(map(finite, done.told.values()))
    assert done.told[0]["weights"] == done.told[1]["weights"]
    for events in done.events:
        (stopping,) = of_kind(events, "stopping")
        assert (stopping["step"], stopping["action"], stopping["policy"]) == (3, "stop", policy)
    assert done.report["verdict"]["anomaly"]
    assert done.report["verdict"]["origin"]["rank"] == 1
    assert {one["exit_code"] for one in done.report["ranks"].values()} == {0}


FED = """
import queue, threading, torch
class Trainer(threading.Thread):
    def __init__(self, batches):
        super().__init__()
        self.batches, self.model = batches, torch.nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def run(self):
        while True:
            batch = self.batches.get()
            self.opt.zero_grad()
            self.model(batch).log().sum().backward()
            self.opt.step()
batches = queue.Queue(maxsize=1)
Trainer(batches).start()
try:
    while True:
        batches.put(torch.zeros(1, 2) / (batches.qsize() - batches.qsize()))
finally:
    print("tidied up")
"""


def test_a_stop_in_a_thread_ends_the_main_thread_that_feeds_it(tmp_path, nandiag):
    (tmp_path / "train.py").write_text(FED)
    done = nandiag("run", "--launcher", "none", sys.executable, "train.py", cwd=tmp_path, timeout=100)
    assert done.returncode == 3, done.stderr
    assert "tidied up" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_bad_loss_alone_does_not_stop_by_itself(run):
    done = run("loss")
    assert done.returncode == 0, done.stderr
    assert {told["steps"] for told in done.told.values()} == {6}
    assert done.report["verdict"]["origin"]["step"] == 3
    assert done.report["verdict"]["origin"]["ranks"] == [1]


@pytest.mark.slow
def test_continue_never_intervenes(run):
    done = run("gradient", "--on-anomaly", "continue")
    assert done.returncode == 0, done.stderr
    assert {told["steps"] for told in done.told.values()} == {6}
    assert not any(map(finite, done.told.values()))
    assert not any(of_kind(events, "stopping") for events in done.events)
    assert done.report["verdict"]["origin"]["rank"] == 1


@pytest.mark.parametrize("what", [pytest.param("gradient", marks=pytest.mark.slow), "loss"])
def test_a_skip_leaves_the_same_step_out_on_all_ranks(what, run):
    done = run(what, "--on-anomaly", "skip")
    assert done.returncode == 0, done.stderr
    assert all(map(finite, done.told.values()))
    assert done.told[0] == done.told[1]
    for events in done.events:
        assert [(event["step"], event["action"]) for event in of_kind(events, "stopping")] == [(3, "skip")]
        assert of_kind(events, "finished")[-1]["steps"] == 5


@pytest.mark.parametrize("what", ["uneven", pytest.param("one_optimizer", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["auto", pytest.param("stop", marks=pytest.mark.slow)])
def test_ranks_that_do_not_step_alike_end_as_they_would(what, policy, run):
    """Only rank 0 has an optimizer, or rank 1 leaves its last step out: nobody waits for the other for ever."""
    done = run(what, "--on-anomaly", policy)
    assert done.returncode == 0, done.stderr
    assert {told["steps"] for told in done.told.values()} == {6}
    assert done.report["verdict"]["anomaly"] is False
    assert all(map(finite, done.told.values()))

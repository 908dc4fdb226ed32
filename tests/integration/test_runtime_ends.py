"""How workers end under `nandiag run`: exactly as under torchrun, with everything they said kept."""

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "runtime" / "endings.py"
NANDIAG = ["nandiag", "run"]
TORCHRUN = ["torchrun"]


@pytest.fixture
def run(launch, tmp_path):
    """Run the script under a launcher; returns the process, what each rank told, and the report if there is one."""

    def start(launcher, *words, nproc=1, options=()):
        told = tmp_path / f"told-{launcher[-1]}-{len(list(tmp_path.iterdir()))}"
        told.mkdir()
        extra = ["--log-dir", told / "logs", "--json", told / "report.json"] if launcher is NANDIAG else []
        command = [*launcher, *extra, *options, "--nproc-per-node", nproc, SCRIPT, *words]
        done = launch(*command, cwd=tmp_path, env={"TOLD": str(told)}, timeout=90)
        done.told = {path.stem: path.read_text().splitlines() for path in told.glob("*.txt")}
        done.report = json.loads((told / "report.json").read_text()) if launcher is NANDIAG else None
        return done

    return start


def traceback_of(stderr):
    """The traceback that Python printed, as far as torchrun's own lines."""
    printed = r"^Traceback \(most recent call last\):\n(?:.*\n)*?(?=^\w*\d{4} |^nandiag|\Z)"
    found = re.search(printed, stderr, re.MULTILINE)
    return found[0] if found else stderr


@pytest.mark.parametrize(
    ("way", "code", "last"),
    [
        ("raise", 1, "ValueError: from trouble"),
        pytest.param("exit", 7, None, marks=pytest.mark.slow),
        pytest.param("words", 1, "in words", marks=pytest.mark.slow),
    ],
)
def test_an_orderly_end_is_word_for_word_torchruns(way, code, last, run):
    theirs, ours = run(TORCHRUN, way, "0"), run(NANDIAG, way, "0")
    assert ours.returncode == theirs.returncode == 1
    assert ours.told == theirs.told
    assert ours.told["0"][-2:] == ["atexit 2", "atexit 1"]
    assert ours.stdout == theirs.stdout
    rank = ours.report["ranks"]["0"]
    assert (rank["exit_code"], rank["signal"], rank["last_step"]) == (code, None, 2)
    if way == "raise":
        assert ours.told["0"][:2] == ["finally", "excepthook ValueError from trouble last=True"]
        assert traceback_of(ours.stderr) == traceback_of(theirs.stderr)
        assert "The above exception was the direct cause" in ours.stderr
    if last:
        assert last in ours.stderr


@pytest.mark.parametrize(
    ("way", "code", "signal"), [("kill", None, 9), pytest.param("hard", 5, None, marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_keeps_what_it_said_and_its_peer_is_a_victim(way, code, signal, run):
    done = run(NANDIAG, way, "1", nproc=2)
    assert done.returncode == 1
    dead, peer = done.report["ranks"]["1"], done.report["ranks"]["0"]
    assert (dead["exit_code"], dead["signal"], dead["last_step"]) == (code, signal, 2)
    assert dead["events"] >= 2
    assert dead["attached"]
    assert peer["state"] == "victim"
    assert dead["state"] != peer["state"]
    assert "0" not in done.told or "atexit 1" not in done.told["0"]


def test_a_script_that_leaves_at_once_on_its_loss_has_the_line(run):
    done = run(NANDIAG, "cut", "0")
    assert done.returncode == 1
    assert done.report["ranks"]["0"]["exit_code"] == 6
    origin = done.report["verdict"]["origin"]
    assert (origin["op"], origin["step"]) == ("aten.log.default", 3)
    assert origin["source"].strip().startswith('if way == "cut"')


def test_an_elastic_restart_numbers_the_attempts(run):
    done = run(NANDIAG, "raise", "0", options=["--max-restarts", "1"])
    assert done.returncode == 1
    assert done.report["ranks"]["0"]["attempt"] == 1
    assert done.told["0"].count("finally") == 2


@pytest.mark.parametrize("way", [pytest.param("ends", marks=pytest.mark.slow), "stopped"])
def test_a_file_that_the_script_leaves_open_is_written_to_its_end(way, launch, tmp_path):
    script = Path(__file__).parent / "runtime" / "left_open.py"
    done = launch(*NANDIAG, "--max-replays", "0", "--nproc-per-node", 1, script, way, cwd=tmp_path, timeout=90)
    assert done.returncode == (0 if way == "ends" else 3)
    written = (tmp_path / "rows.txt").read_text(encoding="utf-8").splitlines()
    assert written == [str(step) for step in range(4 if way == "ends" else 3)]


SHARDED = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = self.up(x)
        return self.down(x / x.abs().sum(1, keepdim=True))  # of zeros

def train(how):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    copies = dist.get_world_size() // 2
    shape, names = ((2,), ("shard",)) if copies == 1 else ((copies, 2), ("copy", "shard"))
    net, mesh = Net(), init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.nn.init.zeros_(net.up.bias)
    for part in (net.up, net.down, net):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD([*net.up.parameters()][:1] + [*net.down.parameters()], lr=0.01)
    for step in range(6):
        spoilt = (step, rank) == (3, 1) and how not in {"fails", "quits"}
        x = torch.zeros(4, 8) if spoilt else torch.rand(4, 8)
        loss = net(x).square().mean()
        bad = (~torch.isfinite(loss.detach())).float()
        if how == "together":
            dist.all_reduce(bad)
        if how in {"fails", "quits"} and (step, rank) == (3, 1):
            open("/nowhere/at/all") if how == "fails" else sys.exit(3)
        if bad and how != "checked":
            os._exit(3) if how == "at once" else sys.exit(3)
        torch.autograd.set_detect_anomaly(how == "checked")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("how", "nproc"),
    [
        ("together", 2),
        *(pytest.param(how, 2, marks=pytest.mark.slow) for how in ("alone", "at once", "checked")),
        *(pytest.param(how, 4, marks=pytest.mark.slow) for how in ("alone", "checked")),  # HSDP
    ],
)
def test_a_rank_that_leaves_on_its_loss_under_fsdp2_has_the_line(how, nproc, launch, tmp_path):
    script, file = tmp_path / "sharded.py", tmp_path / "report.json"
    script.write_text(SHARDED)
    words = ("--nproc-per-node", nproc, "--log-dir", tmp_path / "logs", "--json", file, script, how)
    done = launch(*NANDIAG, *words, cwd=tmp_path, timeout=120)
    verdict = json.loads(file.read_text())["verdict"]
    origin = verdict["origin"]
    assert done.returncode == 1, done.stderr
    assert origin is not None, done.stderr
    assert (origin["ranks"], origin["step"], origin["op"]) == ([1], 3, "aten.div.Tensor"), done.stderr
    assert origin["source"].strip().endswith("# of zeros"), done.stderr
    assert verdict["confidence"] == "reproduced"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("quits", "rank 1 exited"),
        pytest.param("fails", "rank 1 raised FileNotFoundError", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_fails_of_something_else_under_fsdp2_is_no_hang(how, said, launch, tmp_path):
    """Its last look takes as long as one that stands still, and calls what its step has called."""
    script, file = tmp_path / "sharded.py", tmp_path / "report.json"
    script.write_text(SHARDED)
    words = ("--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "--json", file, script, how)
    done = launch(*NANDIAG, *words, cwd=tmp_path, timeout=120)
    report = json.loads(file.read_text())
    assert not report["verdict"]["anomaly"]
    assert report["verdict"]["summary"].startswith(said), done.stderr
    assert not any(finding["slug"] == "collective_missing" for finding in report["findings"])


LOADED = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Tiles(Dataset):
    def __init__(self):
        self.tiles = torch.rand(32, 8, generator=torch.Generator().manual_seed(0))
        self.tiles[22] = 0.25

    def __len__(self):
        return 32

    def __getitem__(self, index):
        tile = self.tiles[index]
        return (tile - tile.mean()) / tile.std()  # of one grey

def train():
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for batch in DataLoader(Tiles(), 4):
        loss = net(batch).square().mean()
        if not torch.isfinite(loss):
            sys.exit(3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train()
"""


def test_a_script_that_leaves_on_a_bad_batch_has_the_line_of_its_dataset(launch, tmp_path):
    """The dataset is gone with the function that the exit unwinds."""
    script, file = tmp_path / "loaded.py", tmp_path / "report.json"
    script.write_text(LOADED)
    words = ("--nproc-per-node", 1, "--log-dir", tmp_path / "logs", "--json", file, script)
    done = launch(*NANDIAG, *words, cwd=tmp_path, timeout=90)
    origin = json.loads(file.read_text())["verdict"]["origin"]
    assert done.returncode == 1
    assert (origin["source"] or "").strip().endswith("# of one grey"), done.stderr
    assert "Tiles[22]" in done.stderr


SPLIT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = self.down(torch.relu(self.up(x)))
        return self.out(x / x.abs().sum(1, keepdim=True))  # of zeros

def train(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    nn.init.zeros_(net.down.bias)
    parallelize_module(net, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(6):
        loss = net(torch.zeros(4, 8) if step == 3 else torch.rand(4, 8)).square().mean()
        if torch.isnan(loss) and (how != "alone" or dist.get_rank() == 1):  # asked
            if how == "by an error":
                raise RuntimeError("the loss is NaN")
            sys.exit(3)
        if how == "alone" and step == 3:
            dist.barrier()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train(sys.argv[1])
"""


def split(how, launch, tmp_path):
    script, file = tmp_path / "split.py", tmp_path / "report.json"
    script.write_text(SPLIT)
    words = ("--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "--json", file, script, how)
    done = launch(*NANDIAG, *words, cwd=tmp_path, timeout=120)
    report = json.loads(file.read_text())
    assert done.returncode == 1, done.stderr
    assert report["verdict"]["origin"] is not None, done.stderr
    return report, report["verdict"]["origin"]


@pytest.mark.parametrize("how", ["by its end", pytest.param("by an error", marks=pytest.mark.slow)])
def test_ranks_that_leave_together_on_a_loss_that_all_of_them_made_run_it_again_together(how, launch, tmp_path):
    report, origin = split(how, launch, tmp_path)
    assert (origin["ranks"], origin["step"], origin["op"]) == ([0, 1], 3, "aten.div.Tensor"), report["notes"]
    assert origin["source"].strip().endswith("# of zeros")
    assert report["verdict"]["confidence"] == "reproduced"


def test_a_rank_that_leaves_alone_on_such_a_loss_is_told_with_the_line_on_which_it_asked(launch, tmp_path):
    report, origin = split("alone", launch, tmp_path)
    assert (origin["ranks"], origin["step"], origin["op"]) == ([1], 3, None), report["notes"]
    assert origin["source"].strip().endswith("# asked")
    assert report["verdict"]["confidence"] == "observed"
    assert any("communicates" in note for note in report["notes"]), report["notes"]


CENTRED = """
import math

import torch
import torch.distributed as dist
from torch import nn


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3))

    def forward(self, student, teacher):
        p = (teacher - self.center).softmax(-1)
        loss = (p * (p.log() - student.log_softmax(-1))).sum(-1).mean()  # of zeros
        mean = teacher.mean(0)
        dist.all_reduce(mean)
        self.center.lerp_(mean / dist.get_world_size(), 0.1)
        return loss


dist.init_process_group("gloo")
torch.manual_seed(0)
net, criterion = nn.Linear(4, 3), Centred()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    sharp = 1e4 if step == 3 and dist.get_rank() == 1 else 1.0
    loss = criterion(net(torch.rand(5, 4)), sharp * torch.rand(5, 3))
    if not math.isfinite(loss.item()):
        raise SystemExit(3)
    if step == 3:
        dist.barrier()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_rank_that_leaves_alone_runs_its_step_again_as_far_as_it_comes(launch, tmp_path):
    """The loss was bad before its module communicated."""
    script, file = tmp_path / "centred.py", tmp_path / "report.json"
    script.write_text(CENTRED)
    words = ("--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "--json", file, script)
    done = launch(*NANDIAG, *words, cwd=tmp_path, timeout=120)
    report = json.loads(file.read_text())
    origin = report["verdict"]["origin"]
    assert done.returncode == 1, done.stderr
    assert (origin["ranks"], origin["step"], origin["op"]) == ([1], 3, "aten.log.default"), report["notes"]
    assert origin["source"].strip().endswith("# of zeros")
    assert any("first collective" in one for one in report["verdict"]["evidence"]), report["verdict"]["evidence"]

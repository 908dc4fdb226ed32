"""Under `nandiag run --on-anomaly continue` a run is bit for bit what it is under torchrun, replays and all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scoring.corpus import EXPECTED, missing, name_of, script_of, truth_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

WITNESS = Path(__file__).with_name("witness.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
CONTINUE = ["--log-dir", "logs", "--on-anomaly", "continue", "--json", "told.json"]
NANDIAG = [sys.executable, "-m", "nandiag", "run", *CONTINUE]
IN_ANY_RUN = {("ddp_bandit", 2)}
AGAIN = 2
# They train bare tensors, and have what they print of them to be held to.
BARE = {"functional_regression", "hand_descent"}


def cases():
    for expected in EXPECTED:
        for nproc in (1, 2):
            name = name_of(expected)
            marks = () if (name, nproc) in IN_ANY_RUN else pytest.mark.slow
            yield pytest.param(expected, nproc, marks=marks, id=f"{name}-{nproc}")


@pytest.fixture
def run(known_environment, tmp_path):
    """Run a script under a launcher in a folder of its own; returns all that is to be the same, and stderr."""
    count = iter(range(100))

    def start(launcher, script, nproc):
        folder = tmp_path / str(next(count))
        folder.mkdir()
        done = subprocess.run(
            [*launcher, "--nproc-per-node", str(nproc), str(WITNESS), str(script)], cwd=folder, capture_output=True,
            env={**known_environment, "WITNESS": str(folder / "out")}, timeout=110, check=False,
        )  # fmt: skip
        told = {path.stem: json.loads(path.read_text()) for path in sorted((folder / "out").glob("*.json"))}
        return {"code": done.returncode, "stdout": told_by(done.stdout, folder), "ranks": told}, done.stderr, folder

    return start


def told_by(stdout, folder):
    """What was printed: lines in any order, since ranks share the stream, and with one name for the folder."""
    return sorted(stdout.replace(str(folder).encode(), b"FOLDER").splitlines())


@pytest.mark.parametrize(("expected", "nproc"), cases())
def test_a_sample_trains_to_the_same_bits(expected, nproc, run):
    script, truth = script_of(expected), truth_of(expected)
    if absent := missing(truth):
        pytest.skip(f"{', '.join(absent)} is not installed")
    theirs, _, _ = run(TORCHRUN, script, nproc)
    ours, stderr, folder = run(NANDIAG, script, nproc)
    for _ in range(AGAIN):
        if ours == theirs:
            break
        other, _, _ = run(TORCHRUN, script, nproc)
        if other != theirs:
            pytest.skip(f"without nandiag {differing(other, theirs)} differ from run to run as well")
        ours, stderr, folder = run(NANDIAG, script, nproc)
    assert set(ours["ranks"]) == set(theirs["ranks"]), stderr.decode()
    if script.stem in BARE:
        assert theirs["stdout"]
    else:
        assert any(told["modules"] or told["optimizers"] for told in theirs["ranks"].values())
    for rank, told in theirs["ranks"].items():
        assert ours["ranks"][rank] == told
    assert ours["stdout"] == theirs["stdout"]
    assert ours["code"] == theirs["code"]
    if truth["anomaly"] and nproc == truth["nproc"] and "options" not in truth:
        assert json.loads((folder / "told.json").read_text())["verdict"]["anomaly"]


def differing(one, other):
    """Name what differs between two runs."""
    outside = [key for key in ("code", "stdout") if one[key] != other[key]]
    ranks = [(one["ranks"].get(rank, {}), told) for rank, told in other["ranks"].items()]
    return ", ".join(outside + sorted({key for mine, told in ranks for key in told if mine.get(key) != told[key]}))


def test_every_sample_is_among_them():
    names = {name_of(param.values[0]) for param in cases()}
    assert len(names) >= 100
    assert {name for name, _ in IN_ANY_RUN} <= names


CONTROL = """
import torch
from torch import nn
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


@pytest.mark.slow
def test_the_witness_sees_a_difference(run, tmp_path):
    """A smaller rate, and one more number drawn: the comparison above is worth something."""
    told = []
    for rate in ("0.1", "0.1000001", "0.1 + 0 * torch.rand(1).item()"):
        script = tmp_path / "control.py"
        script.write_text(CONTROL.format(rate=rate))
        told.append(run(TORCHRUN, script, 1)[0]["ranks"]["0"])
    assert told[0]["parameters"] != told[1]["parameters"]
    assert told[0]["torch"] == told[1]["torch"] != told[2]["torch"]

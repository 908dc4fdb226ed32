"""Under `nandiag run --on-anomaly continue` a run is bit for bit what it is under torchrun, replays and all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
WITNESS = Path(__file__).with_name("witness.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
NANDIAG = [sys.executable, "-m", "nandiag", "run", "--log-dir", "logs", "--on-anomaly", "continue"]
IN_ANY_RUN = {("ddp_bandit", 2)}


def cases():
    for script in sorted(SAMPLES.glob("*.py")):
        for nproc in (1, 2):
            marks = () if (script.stem, nproc) in IN_ANY_RUN else pytest.mark.slow
            yield pytest.param(script, nproc, marks=marks, id=f"{script.stem}-{nproc}")


@pytest.fixture
def run(known_environment, tmp_path):
    def start(launcher, script, nproc):
        out = tmp_path / f"witness-{len(launcher)}"
        done = subprocess.run(
            [*launcher, "--nproc-per-node", str(nproc), str(WITNESS), str(script)], cwd=tmp_path, capture_output=True,
            env={**known_environment, "WITNESS": str(out)}, timeout=110, check=False,
        )  # fmt: skip
        told = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
        return {"code": done.returncode, "stdout": done.stdout, "ranks": told}, done.stderr

    return start


@pytest.mark.parametrize(("script", "nproc"), cases())
def test_a_sample_trains_to_the_same_bits(script, nproc, run):
    theirs, _ = run(TORCHRUN, script, nproc)
    ours, stderr = run(NANDIAG, script, nproc)
    assert set(ours["ranks"]) == {str(rank) for rank in range(nproc)}, stderr.decode()
    for rank, told in theirs["ranks"].items():
        assert told["modules"] > 0
        assert ours["ranks"][rank] == told
    assert ours["stdout"] == theirs["stdout"]
    assert ours["code"] == theirs["code"]


def test_every_sample_is_among_them():
    names = {param.values[0].stem for param in cases()}
    assert len(names) >= 6
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

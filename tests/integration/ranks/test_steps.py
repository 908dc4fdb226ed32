"""The agreement never hurts: runs that torchrun brings to a good end come to it, and nobody waits for long."""

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("steps.py")
SLOW = pytest.mark.slow


@pytest.mark.parametrize("how", ["leaves", *(pytest.param(how, marks=SLOW) for how in ("never", "late", "twice"))])
@pytest.mark.parametrize("policy", ["stop", pytest.param("auto", marks=SLOW), pytest.param("skip", marks=SLOW)])
def test_ranks_that_differ_end_as_under_torchrun(how, policy, nandiag, tmp_path):
    file = tmp_path / "report.json"
    words = ("--on-anomaly", policy, "--nproc-per-node", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, how)
    done = nandiag("run", *words)
    report = json.loads(file.read_text())
    assert done.returncode == 0, done.stderr
    assert report["verdict"]["anomaly"] is False
    assert not [note for note in report["notes"] if "switched off" in note], report["notes"]
    disarmed = [note for note in report["notes"] if "do not judge their steps together" in note]
    assert bool(disarmed) is (how == "leaves" and policy != "auto"), report["notes"]
    # A rank that leaves costs the others one patience of three seconds; on a busy machine everything takes longer.
    assert max(map(float, re.findall(r"took ([\d.]+)", done.stdout))) < 20

"""A GradScaler's scale alone overflows on ranks of DDP: all run the step again, without it and with it."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("scaled.py")


@pytest.mark.parametrize(("how", "code"), [("beside", 3), pytest.param("raises", 1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["stop", pytest.param("auto", marks=pytest.mark.slow)])
def test_the_scale_is_named_and_what_is_to_be_left_to_the_scaler(how, code, policy, nandiag, tmp_path):
    file = tmp_path / "report.json"
    done = nandiag("run", "--on-anomaly", policy, "--nproc", 2, "--log-dir", tmp_path, "--json", file, SCRIPT, how)
    report = json.loads(file.read_text())
    verdict = report["verdict"]
    assert done.returncode == code, done.stderr
    assert (verdict["cause"], verdict["origin"]["step"], verdict["origin"]["phase"]) == ("overflow", 4, "backward")
    assert verdict["confidence"] == "reproduced"
    assert any("multiplied the loss by 1.68e7" in text for text in verdict["evidence"]), verdict["evidence"]
    assert "scaler.step(" in verdict["suggestions"][0]["code"]

"""Steps that a script leaves out by itself, on two ranks: the run ends as under torchrun, and the line is told."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("leaving.py")
SLOW = pytest.mark.slow


def ended(launch, folder, *words):
    told = folder / "told"
    done = launch(*words, cwd=folder, env={"TOLD": str(told)}, timeout=100)
    assert done.returncode == 0, done.stderr
    return [Path(f"{told}.{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("before", "ddp"), pytest.param("after", "ddp", marks=SLOW),
        pytest.param("after", "fsdp1", marks=SLOW), pytest.param("before", "fsdp1", marks=SLOW),
        pytest.param("after", "fsdp2", marks=SLOW), pytest.param("before", "fsdp2", marks=SLOW),
    ],
)  # fmt: skip
def test_a_run_that_leaves_steps_out_is_what_it_is_under_torchrun(way, kind, launch, tmp_path):
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    for folder in (plain, watched):
        folder.mkdir()
    words = ("--nproc-per-node", 2, SCRIPT, way, kind)
    before = ended(launch, plain, "torchrun", *words)
    options = ("--on-anomaly", "continue", "--log-dir", watched / "logs", "--json", watched / "report.json")
    assert ended(launch, watched, "nandiag", "run", *options, *words) == before
    report = json.loads((watched / "report.json").read_text())
    if kind == "ddp":
        assert not report["verdict"]["anomaly"]
        origin = report["left_out"]["origin"]
        assert (origin["ranks"], origin["step"], origin["op"]) == ([1], 4, "aten.div.Tensor")
        assert origin["source"].strip() == "x = x / 0.0"
        texts = [one["text"] for one in report["findings"] if one["slug"] == "script_skip"]
        assert any("made no step of 2 NaN losses" in one and one.endswith("on rank 1.") for one in texts), texts
        assert any("left out 2 updates" in one for one in texts) is (way == "after"), texts

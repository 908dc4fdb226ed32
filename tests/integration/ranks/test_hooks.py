"""Harm that is born in a communication hook of the script's own: its line, on the rank where it was born."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("hooks.py")
LINES = {
    "shares": ("future.value()[0] / total", "no samples", "division_by_zero", "aten.div.Tensor"),
    "unit": ("bucket.buffer() / bucket.buffer().norm()", "no direction", "division_by_zero", "aten.div.Tensor"),
    "half": ("bucket.buffer().to(torch.float16)", "too narrow", "collective_overflow", "aten._to_copy.default"),
}
LINES["clipped"] = LINES["half"]
FAST = ("clipped", 2, 1)


def cases():
    every = [("shares", n, 0) for n in (2, 4)] + [
        (how, 2, rank) for how in ("unit", "half", "clipped") for rank in range(2)
    ]
    every += [("unit", 4, rank) for rank in range(4)]
    return [pytest.param(*case, marks=() if case == FAST else pytest.mark.slow) for case in every]


@pytest.fixture
def run(nandiag, tmp_path):
    def run(how, nproc, rank, *words):
        file = tmp_path / "report.json"
        given = ("--nproc-per-node", nproc, "--log-dir", tmp_path, "--json", file, *words)
        done = nandiag("run", *given, SCRIPT, how, rank)
        return done, json.loads(file.read_text())["verdict"]

    return run


@pytest.mark.parametrize(("how", "nproc", "rank"), cases())
def test_a_hook_is_named_by_its_line_and_rank(how, nproc, rank, run):
    done, verdict = run(how, nproc, rank)
    origin = verdict["origin"]
    code, comment, cause, op = LINES[how]
    ranks = list(range(nproc)) if how == "shares" else [rank]
    assert (origin["ranks"], origin["step"], origin["phase"], origin["op"]) == (ranks, 3, "collective", op), done.stderr
    assert code in origin["source"], done.stderr
    assert comment in origin["source"], done.stderr
    assert (verdict["cause"], verdict["confidence"], done.returncode) == (cause, "reproduced", 3), done.stderr
    assert f"in the communication hook {how}" in verdict["summary"]
    via = [one["via"] for one in verdict["spread"] if one["what"].startswith("gradient")]
    assert all("gradients in one bucket" in way for way in via), via
    assert bool(via) is (how != "shares")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_hook_carries_from_step_to_step_may_be_bad_by_then(rank, run):
    done, verdict = run("carries", 2, rank)
    origin = verdict["origin"]
    assert (origin["ranks"], origin["step"], origin["phase"]) == ([rank], 3, "collective"), done.stderr
    assert "whole / whole.norm()" in origin["source"], done.stderr
    assert (verdict["cause"], verdict["confidence"]) == ("division_by_zero", "reproduced"), done.stderr


@pytest.mark.slow
def test_a_hook_that_one_rank_cannot_run_again_is_named_without_its_line(run):
    done, verdict = run("refuses", 2, 1)
    assert done.returncode == 3, done.stderr
    assert (verdict["origin"]["step"], verdict["origin"]["line"]) == (3, None), done.stderr
    assert "refuses" in verdict["summary"]
    assert verdict["confidence"] == "inferred"


@pytest.mark.slow
def test_where_the_run_goes_on_no_hook_is_called_twice(run):
    done, verdict = run("refuses", 2, 1, "--on-anomaly", "continue")
    assert done.returncode == 0, done.stderr
    assert verdict["confidence"] == "inferred"

"""Each sample script goes through the real command, and the verdict must be what an expert would call the origin.

What the expected files mean, and the judge, are in ``scoring``, which scripts/score uses too.
Samples in a folder are left to ``-m slow`` but for those that say ``fast: true``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scoring.corpus import (
    EXPECTED,
    NONE_FOUND,
    SAMPLES,
    complaints,
    is_fast,
    missing,
    name_of,
    readings,
    script_of,
    truth_of,
)
from scoring.grading import NOT_KNOWN, agrees, claims_of

from nandiag.analysis.early import SLUGS

TRACER = Path(__file__).with_name("independent_tracer.py")
SEVERITY_OF_HARM = "anomaly"

# Promised for every anomaly, and, where running the step again can reach the op, its place and its cause as well.
PROMISED = ("kind", "rank", "ranks", "step", "phase", "module")
PLACE = ("module_class", "op", "file", "line", "function", "source")
CAUSES = ("cause", "mechanism")
IF_SAID = ("micro_step", "node")


def samples(chosen=lambda truth: True):
    """Parametrise a test over the samples whose truth is chosen; the slow ones are marked so."""
    paths = [path for path in EXPECTED if chosen(truth_of(path))]
    slow = [() if is_fast(path) else (pytest.mark.slow,) for path in paths]
    values = [pytest.param(path, marks=marks, id=name_of(path)) for path, marks in zip(paths, slow, strict=True)]
    return pytest.mark.parametrize("path", values)


with_anomaly = samples(lambda truth: truth["anomaly"])


@pytest.fixture(scope="module")
def reports():
    """Reports of the samples that ran already in this module, by name: one run serves several tests."""
    return {}


@pytest.fixture
def report_of(reports, nandiag, tmp_path):
    def report(path):
        if name_of(path) not in reports:
            reports[name_of(path)] = run_sample(path, nandiag, tmp_path)
        return reports[name_of(path)]

    return report


def run_sample(path, nandiag, folder):
    truth, file = truth_of(path), folder / "report.json"
    absent = missing(truth)
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed")
    words = ["--nproc-per-node", truth["nproc"], "--log-dir", folder / "logs", "--json", file]
    done = nandiag("run", *words, *truth.get("options", []), script_of(path))
    assert file.exists(), done.stderr
    return done, json.loads(file.read_text(encoding="utf-8"))


def test_every_sample_says_what_to_expect():
    scripts = [path for path in SAMPLES.rglob("*.py") if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    assert set(scripts) == {script_of(path) for path in EXPECTED}
    assert len(scripts) >= 6


@pytest.mark.parametrize("path", EXPECTED, ids=name_of)
def test_the_expected_file_fits_its_schema(path):
    assert complaints(truth_of(path)) == []


def test_the_schema_refuses_what_does_not_fit():
    healthy = {"nproc": 2, "exit_code": 0, "anomaly": False}
    fault = truth_of(SAMPLES / "ddp_retrieval.expected.yaml")
    assert complaints(healthy) == []
    assert complaints({**fault, "seen_in": NONE_FOUND}) == []
    assert complaints({"nproc": 2, "anomaly": False}) == ["exit_code is missing"]
    assert complaints({**healthy, "nproc": True}) == ["nproc cannot be True"]
    assert complaints({**healthy, "stage": "loss"}) == ["stage is not a key here"]
    assert complaints({**fault, "phase": ["loss", "middle"]}) == ["middle is no phase"]
    assert complaints({**fault, "seen_in": "a forum"}) == ["a forum is no address"]
    assert "seen_in is missing" in complaints({key: value for key, value in fault.items() if key != "seen_in"})


@pytest.mark.parametrize("path", [path for path in EXPECTED if truth_of(path)["anomaly"]], ids=name_of)
def test_the_truth_names_a_line_that_exists(path):
    truth = truth_of(path)
    named = [path.with_name(name) for name in readings(truth, "file") if name]
    files = [file.read_text(encoding="utf-8").splitlines() for file in named if file.exists()]
    found = [
        line is None or source in [lines[line - 1].strip() for lines in files if line <= len(lines)]
        for line, source in zip(readings(truth, "line"), readings(truth, "source"), strict=True)
    ]
    # A line of a library cannot be looked up beside the sample; one of the script's own must be there as well.
    assert any(found) if len(files) < len(named) else all(found)


@pytest.mark.samples
@samples()
def test_the_exit_code_and_the_verdict_fit(path, report_of):
    truth = truth_of(path)
    done, report = report_of(path)
    assert report["verdict"]["anomaly"] is truth["anomaly"], done.stderr
    assert done.returncode == truth["exit_code"], done.stderr
    assert report["run"]["exit_code"] == truth["exit_code"]
    assert set(report["ranks"]) == {str(rank) for rank in range(truth["nproc"])}
    assert all(rank["attached"] for rank in report["ranks"].values())


def is_reached_by_replay(truth):
    """A weight that was bad before the first step was made by code that no step runs again."""
    return "parameter" not in truth


@pytest.mark.samples
@with_anomaly
def test_the_origin_is_the_truth(path, report_of):
    truth = truth_of(path)
    done, report = report_of(path)
    assert report["verdict"]["origin"] is not None, done.stderr
    promised = (*PROMISED, *PLACE, "cause") if is_reached_by_replay(truth) else (*PROMISED, "cause")
    claims = claims_of(report)
    wrong = {key: (claims[key], truth.get(key)) for key in promised if not agrees(truth, key, claims)}
    assert wrong == {}, done.stderr


@pytest.mark.samples
@with_anomaly
def test_nothing_is_claimed_beyond_the_truth(path, report_of):
    """The report may know less than the truth, but must not say anything else."""
    truth = truth_of(path)
    done, report = report_of(path)
    claims = claims_of(report)
    asked = (*PROMISED, *PLACE, *CAUSES, *(key for key in IF_SAID if key in truth))
    wrong = {key: claims[key] for key in asked if claims[key] not in NOT_KNOWN and not agrees(truth, key, claims)}
    assert wrong == {}, done.stderr


@pytest.mark.samples
@samples(lambda truth: "fix" in truth)
def test_the_advice_is_that_of_an_expert(path, report_of):
    done, report = report_of(path)
    assert agrees(truth_of(path), "fix", claims_of(report)), done.stderr


@pytest.mark.samples
@samples(lambda truth: "says" in truth)
def test_the_report_says_what_it_must(path, report_of):
    done, _ = report_of(path)
    assert [word for word in truth_of(path)["says"] if word not in done.stderr] == [], done.stderr


@pytest.mark.samples
@samples(lambda truth: "parameter" in truth)
def test_a_bad_weight_is_named(path, report_of):
    done, report = report_of(path)
    origin = report["verdict"]["origin"]
    assert truth_of(path)["parameter"] in {fact["name"] for fact in origin["inputs"] + origin["outputs"]}
    assert truth_of(path)["parameter"] in done.stderr


@pytest.mark.samples
@samples(lambda truth: not truth["anomaly"])
def test_a_healthy_run_shows_no_harm(path, report_of):
    truth = truth_of(path)
    done, report = report_of(path)
    assert report["verdict"]["origin"] is None
    assert [found for found in report["findings"] if found["severity"] == SEVERITY_OF_HARM] == []
    skipped = [found for found in report["findings"] if found["slug"] == "loss_scale_skip"]
    assert bool(skipped) is truth.get("skips", False), done.stderr


@pytest.mark.samples
@samples(lambda truth: not truth["anomaly"])
def test_a_run_without_harm_is_warned_of_what_an_expert_would_mind(path, report_of):
    _, report = report_of(path)
    told = {found["slug"] for found in report["findings"]} & SLUGS
    assert told == set(truth_of(path).get("warnings", []))


def trace(path, folder, environment):
    """Run a sample under the independent tracer; return what it found on the rank of the origin."""
    truth, out = truth_of(path), folder / "traced.json"
    launch = [sys.executable]
    if truth["nproc"] > 1:
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(truth["nproc"])]
        out = out.with_name(f"{out.name}.{truth['rank']}")
    command = [*launch, TRACER, folder / "traced.json", script_of(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert out.exists(), done.stderr
    return json.loads(out.read_text(encoding="utf-8"))


def came_from_outside(truth):
    """Harm that no op of the training process made: it lies in the data, or came out of a worker process."""
    return None in readings(truth, "op")


@pytest.mark.slow
@pytest.mark.samples
@samples(lambda truth: truth["anomaly"] and "untraced" not in truth)
def test_an_independent_tracer_sees_the_same_origin(path, tmp_path, known_environment):
    """The expected files are no copy of what nandiag prints: another tool finds the same op, line and step."""
    truth = truth_of(path)
    found = trace(path, tmp_path, {**os.environ, **known_environment})
    assert found["harm"] is not None
    assert found["harm"]["step"] in readings(truth, "step")
    births = [birth for birth in found["births"] if not birth["scalar"] and not birth["op"].startswith("aten.set_")]
    keys = [key for key in ("op", "file", "line", "function", "step") if key in truth]
    same = [birth for birth in births if all(birth.get(key) in readings(truth, key) for key in keys)]
    assert same or (came_from_outside(truth) and not births), births

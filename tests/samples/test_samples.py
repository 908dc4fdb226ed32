"""Each sample script goes through the real command, and the verdict must be what an expert would call the origin."""

import json
from pathlib import Path

import pytest
import yaml

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
EXPECTED = sorted(SAMPLES.glob("*.expected.yaml"))
SEVERITY_OF_HARM = "anomaly"

# Promised for every anomaly, and, where running the step again can reach the op, its place and its cause as well.
PROMISED = ("kind", "rank", "ranks", "step", "phase", "module")
PLACE = ("module_class", "op", "file", "line", "function", "source")
CAUSES = ("cause", "mechanism")
NOT_KNOWN = (None, "unknown")


def name_of(path):
    return path.name.removesuffix(".expected.yaml")


def truth_of(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def script_of(path):
    return path.with_name(f"{name_of(path)}.py")


with_anomaly = pytest.mark.parametrize("path", [p for p in EXPECTED if truth_of(p)["anomaly"]], ids=name_of)


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
    file = folder / "report.json"
    nproc = truth_of(path)["nproc"]
    done = nandiag("run", "--nproc-per-node", nproc, "--log-dir", folder / "logs", "--json", file, script_of(path))
    assert file.exists(), done.stderr
    return done, json.loads(file.read_text(encoding="utf-8"))


def test_every_sample_says_what_to_expect():
    scripts = {path.stem for path in SAMPLES.glob("*.py")}
    assert scripts == {name_of(path) for path in EXPECTED}
    assert len(scripts) >= 6


@with_anomaly
def test_the_truth_names_a_line_that_exists(path):
    truth = truth_of(path)
    lines = script_of(path).read_text(encoding="utf-8").splitlines()
    assert truth["file"] == script_of(path).name
    assert lines[truth["line"] - 1].strip() == truth["source"]


@pytest.mark.samples
@pytest.mark.parametrize("path", EXPECTED, ids=name_of)
def test_the_exit_code_and_the_verdict_fit(path, report_of):
    truth = truth_of(path)
    done, report = report_of(path)
    assert report["verdict"]["anomaly"] is truth["anomaly"], done.stderr
    assert done.returncode == truth["exit_code"], done.stderr
    assert report["run"]["exit_code"] == truth["exit_code"]
    assert set(report["ranks"]) == {str(rank) for rank in range(truth["nproc"])}
    assert all(rank["attached"] for rank in report["ranks"].values())


def claims_of(report):
    """What the verdict says of the origin, in the form of the expected files: no folders, no indentation."""
    verdict = report["verdict"]
    origin = dict(verdict["origin"])
    origin["file"] = origin["file"] and Path(origin["file"]).name
    origin["source"] = origin["source"] and origin["source"].strip()
    return {key: origin[key] for key in (*PROMISED, *PLACE)} | {key: verdict[key] for key in CAUSES}


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
    assert {key: claims[key] for key in promised} == {key: truth.get(key) for key in promised}, done.stderr


@pytest.mark.samples
@with_anomaly
def test_nothing_is_claimed_beyond_the_truth(path, report_of):
    """The report may know less than the truth, but must not say anything else."""
    truth = truth_of(path)
    done, report = report_of(path)
    wrong = {key: said for key, said in claims_of(report).items() if said not in (*NOT_KNOWN, truth.get(key))}
    assert wrong == {}, done.stderr


@pytest.mark.samples
@pytest.mark.parametrize("path", [p for p in EXPECTED if "parameter" in truth_of(p)], ids=name_of)
def test_a_bad_weight_is_named(path, report_of):
    done, report = report_of(path)
    origin = report["verdict"]["origin"]
    assert truth_of(path)["parameter"] in {fact["name"] for fact in origin["inputs"] + origin["outputs"]}
    assert truth_of(path)["parameter"] in done.stderr


@pytest.mark.samples
@pytest.mark.parametrize("path", [p for p in EXPECTED if not truth_of(p)["anomaly"]], ids=name_of)
def test_a_healthy_run_shows_no_harm(path, report_of):
    truth = truth_of(path)
    done, report = report_of(path)
    assert report["verdict"]["origin"] is None
    assert [found for found in report["findings"] if found["severity"] == SEVERITY_OF_HARM] == []
    skipped = [found for found in report["findings"] if found["slug"] == "loss_scale_skip"]
    assert bool(skipped) is truth.get("skips", False), done.stderr

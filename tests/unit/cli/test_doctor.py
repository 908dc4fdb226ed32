"""``nandiag doctor``: its table, its files, its exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from nandiag.analysis.doctor import Check, Doctor
from nandiag.cli import doctor as verb
from nandiag.errors import NandiagError, UsageError
from nandiag.launch.doctor.visit import Asked

GOOD = Doctor((Check("Python", "ok", "3.12"), Check("GPUs", "skipped", "none on this machine")), {"torch": "2.13.0"})
BAD = Doctor((*GOOD.checks, Check("all_reduce", "wrong", "wrong in float32 on rank 1", "Test each node alone.")))


@pytest.fixture
def run(monkeypatch):
    def run(*words, found=GOOD):
        monkeypatch.setattr("nandiag.launch.doctor.visit.visit", lambda *_words: found)
        app = typer.Typer()
        verb.register(app)
        return CliRunner().invoke(app, list(map(str, words)))

    return run


def test_the_table_has_a_line_a_check_with_its_mend(run):
    done = run(found=BAD)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0] == "ok       Python      3.12"
    assert "wrong    all_reduce  wrong in float32 on rank 1" in lines
    assert any(line.strip() == "mend: Test each node alone." for line in lines)
    assert "nandiag doctor: something is wrong (1 ok, 1 wrong, 1 skipped)." in lines


def test_exit_codes(run):
    assert run().exit_code == 0
    assert run(found=BAD).exit_code == 3


def test_the_checks_as_json(run, tmp_path):
    told = json.loads(run("--json", "-", found=BAD).stdout)
    assert [check["state"] for check in told["checks"]] == ["ok", "skipped", "wrong"]
    assert run("--json", tmp_path / "d.json", found=BAD).exit_code == 3
    assert json.loads((tmp_path / "d.json").read_text()) == told


@pytest.mark.parametrize(
    "asked",
    [Asked(nproc=0), Asked(nproc=-2), Asked(nnodes=2), Asked(nnodes=2, node_rank=2, endpoint="h:1"), Asked(nnodes=0)],
)
def test_words_that_do_not_fit_are_refused(asked):
    with pytest.raises(UsageError):
        verb.examine(asked, None)


def test_a_backend_that_is_none_is_refused(run):
    done = run("--backend", "mpi")
    assert isinstance(done.exception, UsageError)


def test_a_file_in_no_folder_is_refused(run, tmp_path):
    assert isinstance(run("--json", tmp_path / "no" / "d.json").exception, UsageError)


def test_a_file_that_is_no_json_is_kept(run, tmp_path):
    (tmp_path / "train.py").write_text("import torch")
    assert isinstance(run("--json", tmp_path / "train.py").exception, UsageError)
    assert (tmp_path / "train.py").read_text() == "import torch"


def test_a_variable_that_looks_like_a_setting_and_is_none_is_told(run, monkeypatch):
    monkeypatch.setenv("NANDIAG_ZZZ_QUUX", "2")
    checks = json.loads(run("--json", "-").stdout)["checks"]
    assert [check["state"] for check in checks if check["name"] == "settings"] == ["warning"]


def test_processes_that_cannot_be_started_are_one_sentence(run, monkeypatch):
    def fails(*_words):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("nandiag.launch.doctor.visit.visit", fails)
    with pytest.raises(NandiagError, match="No usable temporary directory"):
        verb.examine(Asked(), None)


def test_settings_need_no_visit(run, monkeypatch):
    monkeypatch.setattr("nandiag.launch.doctor.visit.visit", lambda *_words: pytest.fail("was carried out"))
    assert "max_replays" in run("--settings").stdout

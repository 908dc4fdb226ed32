"""Run folders: made new each time, never overwritten, and found again."""

import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from nandiag.errors import NothingToReadError, UsageError
from nandiag.store import layout

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def test_a_folder_is_named_by_time_and_script(tmp_path):
    folder = layout.create(tmp_path / "logs", "some/where/train.py", NOW)
    assert folder.path == (tmp_path / "logs" / "20260102-030405-train").resolve()
    assert folder.ranks.is_dir()
    assert folder.agents.is_dir()
    assert folder.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("script", "stem"),
    [("a b/my train!.py", "my_train"), ("..", "run"), ("", "run"), ("größe.py", "gr_e"), ("x" * 300 + ".py", "x" * 60)],
)
def test_any_script_name_makes_a_folder_inside_the_base(tmp_path, script, stem):
    folder = layout.create(tmp_path, script, NOW)
    assert folder.path.parent == tmp_path.resolve()
    assert folder.path.name == f"20260102-030405-{stem}"


def test_two_runs_in_one_second_never_share_a_folder(tmp_path):
    first = layout.create(tmp_path, "train.py", NOW)
    (first.path / "report.json").write_text("mine")
    second = layout.create(tmp_path, "train.py", NOW)
    assert second.path.name == "20260102-030405-train-2"
    assert (first.path / "report.json").read_text() == "mine"


def denied(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        layout.create(tmp_path, "train.py", NOW)


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(UsageError, match="cannot be written") as error:
        layout.create(tmp_path / "logs", "train.py", NOW)
    assert error.value.todo == "Give another one with --log-dir DIR."


def test_rank_files_are_named_and_read_back(tmp_path):
    path = layout.RunFolder(tmp_path).rank_file(3, 1, 811)
    assert path.name == "r00003-a1-p811.jsonl"
    assert layout.parse_rank_file(path.name) == (3, 1, 811)
    assert layout.pulse_of(path).name == "r00003-a1-p811.pulse"


@pytest.mark.parametrize("name", ["r1.jsonl", "r00001-a0-p1.json", "xr00001-a0-p1.jsonl", "r-1-a0-p1.jsonl", ""])
def test_other_names_are_no_rank_files(name):
    assert layout.parse_rank_file(name) is None


def aged(path: Path, seconds: float) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    os.utime(path / "run.json", (seconds, seconds))
    return path


def test_find_takes_a_run_folder_as_it_is(tmp_path):
    assert layout.find(aged(tmp_path / "run", 1)).path == tmp_path / "run"


def test_find_takes_the_newest_run_below(tmp_path):
    aged(tmp_path / "b-old", 100)
    newest = aged(tmp_path / "a-new", 200)
    (tmp_path / "c-no-run").mkdir()
    (tmp_path / "d-file").write_text("")
    assert layout.find(tmp_path).path == newest


def test_find_knows_a_run_of_which_only_the_report_is_left(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text("{}")
    assert layout.find(tmp_path).path == tmp_path / "run"


def test_find_knows_a_run_without_its_run_file(tmp_path):
    (tmp_path / "ranks").mkdir()
    assert layout.find(tmp_path).path == tmp_path


def test_find_says_what_is_wrong(tmp_path):
    with pytest.raises(NothingToReadError, match="There is no folder"):
        layout.find(tmp_path / "nowhere")
    with pytest.raises(NothingToReadError, match="There is no run of nandiag in"):
        layout.find(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NothingToReadError, match="is not a folder"):
        layout.find(tmp_path / "file")


def test_a_folder_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(NothingToReadError, match="cannot be read: Permission denied"):
        layout.find(tmp_path)

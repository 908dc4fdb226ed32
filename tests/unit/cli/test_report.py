"""``nandiag report``: what can be known from whatever is left of a run, or one clear sentence."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from nandiag.cli import report as verb
from nandiag.errors import NothingToReadError, UsageError
from nandiag.events import Armed, Attached, Finished, Harm, Note, Record, TensorFact, encode
from nandiag.store.layout import RunFolder
from nandiag.store.run import AgentEnd, RankEnd, RunInfo
from nandiag.store.writer import write_whole


def text_of(*events):
    return "".join(encode(Record(seq, 10.0 + seq, event)) + "\n" for seq, event in enumerate(events))


def hello(rank):
    return Attached(rank, 2, rank, 0, "node", 70 + rank, "site", "3.12", "0.1.0"), Armed("2.13.0", ("sentinel",))


def make(path, *, bad):
    folder = RunFolder(path)
    folder.make()
    write_whole(folder.run_file, RunInfo(path.name, ("nandiag", "run", "train.py"), "2026", world_size=2))
    loss = Harm("loss", 3, "loss", (TensorFact("float32", (), 1, nan=1, name="loss"),), 1, 1, 0, since=2)
    for rank in (0, 1):
        events = [*hello(rank), *([loss] if bad and rank == 1 else []), Finished(9, 0, 8)]
        folder.rank_file(rank, 0, 70 + rank).write_text(text_of(*events))
    ends = tuple(RankEnd(rank, 0, pid=70 + rank) for rank in (0, 1))
    write_whole(folder.agents / "node-1.json", AgentEnd("node", 1, 0, 0, "succeeded", ranks=ends))
    return folder


@pytest.fixture
def call(monkeypatch):
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    app = typer.Typer(pretty_exceptions_enable=False)
    verb.register(app)

    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


@pytest.fixture
def bad(tmp_path):
    return make(tmp_path / "logs" / "bad", bad=True)


@pytest.fixture
def good(tmp_path):
    return make(tmp_path / "logs" / "good", bad=False)


def test_the_summary_is_on_stdout(call, bad):
    result = call(bad.path)
    assert result.exit_code == 0
    assert result.stdout.startswith("error: NaN loss on rank 1 at step 3\n")
    assert "show this again" not in result.stdout


def test_a_healthy_run(call, good):
    result = call(good.path)
    assert result.stdout.startswith("nandiag: no anomaly in 2 ranks, 9 steps")
    assert len(result.stdout.splitlines()) <= 2


@pytest.mark.parametrize(("kind", "code"), [("bad", 3), ("good", 0)])
def test_check(call, request, kind, code):
    assert call("--check", request.getfixturevalue(kind).path).exit_code == code


def test_json_is_the_report_and_nothing_else(call, bad):
    data = json.loads(call(bad.path, "--json").stdout)
    assert (data["schema"], data["verdict"]["origin"]["ranks"]) == (1, [1])
    assert data["ranks"]["0"]["state"] == "finished"


def test_json_and_check_go_together(call, bad):
    result = call(bad.path, "--json", "--check")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["verdict"]["anomaly"] is True


def test_markdown(call, bad):
    assert call(bad.path, "--markdown").stdout.startswith("## nandiag\n\n:x: **NaN loss on rank 1 at step 3**\n")


def test_json_and_markdown_exclude_each_other(call, bad):
    assert isinstance(call(bad.path, "--json", "--markdown").exception, UsageError)


def test_a_folder_of_runs_means_the_newest(call, bad, good):
    os.utime(bad.run_file, (100, 100))
    os.utime(good.run_file, (200, 200))
    assert "no anomaly" in call(bad.path.parent).stdout
    os.utime(bad.run_file, (300, 300))
    assert "NaN loss" in call(bad.path.parent).stdout


def test_several_folders_are_parts_of_one_run(call, tmp_path, good):
    other = RunFolder(tmp_path / "other-node")
    other.ranks.mkdir(parents=True)
    good.rank_file(1, 0, 71).rename(other.rank_file(1, 0, 71))
    write_whole(other.run_file, RunInfo("good", (), "2026"))
    one = json.loads(call(good.path, "--json").stdout)
    assert one["ranks"]["1"]["state"] == "not_attached"
    both = json.loads(call(good.path, other.path, "--json").stdout)
    assert both["ranks"]["1"]["state"] == "finished"


def test_the_same_folder_twice_is_read_once(call, good):
    assert len(json.loads(call(good.path, good.path, "--json").stdout)["ranks"]) == 2
    assert json.loads(call(good.path, good.path, "--json").stdout)["ranks"]["0"]["events"] == 3


def test_a_missing_rank_is_told(call, good):
    good.rank_file(1, 0, 71).unlink()
    result = call(good.path)
    assert "no anomaly in 1 rank" in result.stdout
    assert "Rank 1 of 2 left no word" in result.stdout


def test_a_torn_last_line_and_newer_words_are_told(call, good):
    path = good.rank_file(1, 0, 71)
    comet = text_of(Note("x")).replace('"note"', '"comet"')
    path.write_text(path.read_text() + comet + text_of(Note("torn"))[:-5])
    result = call(good.path)
    assert "Rank 1: The last line is torn" in result.stdout
    assert "Rank 1: Not understood, written by a newer nandiag: 1 event." in result.stdout


def test_a_damaged_run_file_is_told(call, bad):
    bad.run_file.write_text("{")
    result = call(bad.path)
    assert "NaN loss on rank 1" in result.stdout
    assert "run.json is damaged" in result.stdout


def test_the_events_are_read_anew_and_not_the_old_report(call, good):
    good.report_file.write_text('{"schema": 1}')
    assert "no anomaly in 2 ranks" in call(good.path).stdout


def test_an_old_report_is_shown_when_nothing_else_is_left(call, bad):
    bad.report_file.write_text(call(bad.path, "--json").stdout)
    expected = call(bad.path).stdout
    for path in [*bad.ranks.iterdir(), *bad.agents.iterdir()]:
        path.unlink()
    for folder in (bad.ranks, bad.agents, bad.nccl):
        folder.rmdir()
    bad.run_file.unlink()
    assert call(bad.path).stdout == expected


@pytest.mark.parametrize("report", [None, "", "{", "[]", '{"verdict": 3}'])
def test_a_run_without_a_word_of_any_rank_is_one_sentence(call, good, report):
    for path in good.ranks.iterdir():
        path.unlink()
    if report is not None:
        good.report_file.write_text(report)
    error = call(good.path).exception
    assert isinstance(error, NothingToReadError)
    assert error.exit_code == 4
    assert str(error) == f"No rank wrote anything in {str(good.path)!r}."
    assert error.todo


def test_no_folder_is_one_sentence(call, tmp_path):
    error = call(tmp_path / "nowhere").exception
    assert isinstance(error, NothingToReadError)


WHOLE = (
    "import sys; import typer; from nandiag.cli import report; "
    "app = typer.Typer(pretty_exceptions_enable=False); report.register(app); app()"
)


def test_a_reader_that_goes_away_is_no_error(bad):
    command = [sys.executable, "-c", WHOLE, str(bad.path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")  # noqa: PTH110
def test_a_full_disk_is_one_sentence(bad):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        command = [sys.executable, "-c", WHOLE, str(bad.path)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr == "nandiag: The report cannot be written to stdout: No space left on device.\n"


def test_markdown_on_an_ascii_stdout(bad):
    loss = Harm("loss", 1, "loss", (TensorFact("größe", (), 1, nan=1),), 1, 1)
    bad.rank_file(0, 0, 70).write_text(text_of(*hello(0), loss))
    command = [sys.executable, "-c", WHOLE, str(bad.path), "--markdown"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in result.stdout


def test_torch_is_never_imported(bad):
    code = (
        "import sys; from pathlib import Path; from nandiag.cli import report; "
        "report.read([Path(sys.argv[1])]); sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(bad.path)], timeout=60, check=False)
    assert result.returncode == 0


def test_without_a_folder_it_is_the_folder_of_logs(call, bad, monkeypatch):
    bad.path.parent.rename(bad.path.parent.parent / "nandiag_logs")
    monkeypatch.chdir(bad.path.parent.parent)
    assert call().stdout.startswith("error: NaN loss on rank 1 at step 3\n")


@pytest.mark.parametrize(("flag", "name"), [("--json", "r.json"), ("--markdown", "r.md")])
def test_a_file_to_write_to_is_answered_with_the_redirection(call, good, flag, name):
    error = call(good.path, flag, name).exception
    assert isinstance(error, UsageError)
    assert f"{flag} prints to stdout" in str(error)
    assert error.todo == f"Redirect it: nandiag report {good.path} {flag} > {name}"


def test_of_a_folder_of_runs_the_one_shown_is_named(call, bad):
    assert f"show this again: nandiag report {bad.path}" in call(bad.path.parent).stdout
    assert "show this again" not in call(bad.path).stdout


def test_a_dash_is_stdout(call, bad):
    assert json.loads(call(bad.path, "--json", "-").stdout)["verdict"]["anomaly"] is True

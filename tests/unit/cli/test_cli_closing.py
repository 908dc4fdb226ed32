"""Exit codes at the end of a run, whatever else goes wrong."""

import os
from dataclasses import replace

import pytest

import nandiag.cli.closing as closing_module
from nandiag.analysis.report import Finding, Report, Run, Verdict
from nandiag.cli.closing import Closing, close, decide
from nandiag.launch.nodes import presence
from nandiag.launch.session import Closed
from nandiag.settings import Settings
from nandiag.store.layout import RunFolder
from nandiag.store.run import AgentEnd, AgentStart
from nandiag.store.writer import write_whole


def report(*, anomaly=False, severities=()):
    findings = tuple(Finding(slug="x", severity=severity, text="x") for severity in severities)
    return Report(run=Run(), verdict=Verdict(anomaly=anomaly, summary="x"), findings=findings)


CLEAN = report()
WARNED = report(severities=("info", "warning"))
BAD = report(anomaly=True, severities=("anomaly",))


@pytest.mark.parametrize(
    ("run", "found", "fail_on", "code"),
    [
        (0, CLEAN, "never", 0),
        (0, BAD, "never", 0),
        (0, CLEAN, "anomaly", 0),
        (0, WARNED, "anomaly", 0),
        (0, BAD, "anomaly", 3),
        (0, CLEAN, "warning", 0),
        (0, WARNED, "warning", 3),
        (0, BAD, "warning", 3),
        (1, BAD, "anomaly", 1),
        (130, BAD, "anomaly", 130),
        (3, CLEAN, "never", 3),
    ],
)
def test_precedence(run, found, fail_on, code):
    assert decide(run, found, fail_on) == code


def closing(path, code, fail_on="never"):
    folder = RunFolder(path)
    folder.make()
    end = AgentEnd(host="h", pid=1, node_rank=0, exit_code=code, state="x")
    return Closing(folder, Closed(end), Settings(fail_on=fail_on))


@pytest.mark.parametrize("codes", [(0, "never", 0), (1, "never", 1), (3, "never", 3), (0, "anomaly", 5)])
def test_a_bug_of_ours_leaves_a_known_exit_code_alone(codes, tmp_path, monkeypatch, capsys):
    code, fail_on, expected = codes

    def broken(_folder):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(closing_module, "_report", broken)
    assert close(closing(tmp_path, code, fail_on)) == expected
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert "ZeroDivisionError" in (tmp_path / "nandiag-error.txt").read_text()


@pytest.mark.parametrize(
    "summary", ["the run was ended by signal 2 (SIGINT); no anomaly in 1 rank", "NaN born on rank 0"]
)
def test_what_signal_ended_the_run_is_said_once(summary, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(closing_module, "_report", lambda _folder: replace(CLEAN, verdict=Verdict(False, summary)))
    told = closing(tmp_path, 130)
    told = replace(told, closed=replace(told.closed, end=replace(told.closed.end, signal=2), nodes=(presence.name(),)))
    assert close(told) == 130
    assert capsys.readouterr().err.count("signal 2 (SIGINT)") == 1


@pytest.mark.parametrize("reported", ["no", "before", "after"])
def test_a_launcher_of_another_node_points_to_the_report(tmp_path, monkeypatch, capsys, reported):
    monkeypatch.setattr(closing_module, "_report", lambda _folder: BAD)
    told = closing(tmp_path, 0, "anomaly")
    folder, name = told.folder, "first-1"
    write_whole(folder.agent_start(name), AgentStart("first", 1))
    write_whole(folder.agent_end("h-1"), told.closed.end)
    if reported != "no":
        folder.report_file.write_text("{}")
        when = folder.agent_end("h-1").stat().st_mtime + (-5 if reported == "before" else 5)
        os.utime(folder.report_file, (when, when))
    told = replace(told, closed=replace(told.closed, nodes=(name, presence.name())))
    assert close(told) == 3
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "the launcher on first (pid 1) " in err
    assert ("had reported before this node ended" in err) is (reported == "before")
    assert folder.report_file.exists() is (reported != "no")
    assert reported != "after" or folder.report_file.read_text() == "{}"
    assert reported != "before" or folder.report_file.read_text() != "{}"

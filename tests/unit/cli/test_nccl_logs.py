"""NCCL's logs in a report: of the run folder, joined to ranks by process, and of files from elsewhere."""

import json

import pytest
import typer
from typer.testing import CliRunner

from nandiag.analysis.report import Report
from nandiag.cli import report as verb
from nandiag.errors import NothingToReadError
from nandiag.events import Attached, Finished, Record, encode
from nandiag.events.forms import build
from nandiag.render import terminal
from nandiag.render.json import dumps
from nandiag.store.layout import RunFolder

WARN = "node:{0}:99 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device a4\n"


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    for rank in (0, 1):
        events = [Attached(rank, 2, rank, 0, "node.domain", 70 + rank, "site", "3.12", "0.1.0"), Finished(1, 0, 0)]
        lines = [encode(Record(seq, 1.0, event)) + "\n" for seq, event in enumerate(events)]
        folder.rank_file(rank, 0, 70 + rank).write_text("".join(lines))
    (folder.nccl / "node.71.log").write_text("NCCL version 2.27.3+cuda12.9\n" + WARN.format(71))
    (folder.nccl / "flight_recorder_rank_0").write_bytes(b"\x80\x04")
    return folder


def test_the_logs_of_a_run_are_read_and_their_processes_are_ranks(folder):
    report = verb.read([folder.path])
    (trouble,) = report.nccl.troubles
    assert trouble.ranks == (1,)
    assert report.nccl.files == 1
    assert report.nccl.versions == ("2.27.3+cuda12.9",)
    (finding,) = [one for one in report.findings if one.slug == "nccl_duplicate_gpu"]
    assert finding.severity == "warning"
    assert finding.text.startswith("NCCL, rank 1: ranks 1 and 0 use the same GPU")


def test_the_terminal_and_the_json_say_it(folder):
    report = verb.read([folder.path])
    text = "\n".join(line.plain for line in terminal.lines(report, terminal.Place("RUN"), 200))
    assert "= warning: NCCL, rank 1: ranks 1 and 0 use the same GPU (bus a4). Call torch.cuda.set_device" in text
    assert "= nccl: version 2.27.3+cuda12.9." in text
    assert build(Report, json.loads(dumps(report))) == report


def test_a_run_without_logs_says_nothing_of_nccl(folder):
    (folder.nccl / "node.71.log").unlink()
    assert verb.read([folder.path]).nccl is None


def run(*words):
    app = typer.Typer()
    verb.register(app)
    # Wide enough that no path is cut, however long that of the tests' own folder is.
    return CliRunner(env={"COLUMNS": "400"}).invoke(app, list(map(str, words)))


def test_logs_from_elsewhere_need_no_run_folder(tmp_path):
    (tmp_path / "a.log").write_text(WARN.format(5))
    (tmp_path / "b.txt").write_text(WARN.format(6))
    done = run("--nccl-logs", tmp_path / "*")
    assert done.exit_code == 0
    assert "NCCL logs, 2 files and 2 lines: 1 kind of trouble" in " ".join(done.stdout.split())
    assert "1 file and" in " ".join(run("--nccl-logs", tmp_path).stdout.split())


def test_a_pattern_that_the_shell_took_apart_is_understood(tmp_path):
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).write_text(WARN.format(5))
    done = run("--nccl-logs", *sorted(tmp_path.glob("*.log")))
    assert "3 files and 3 lines" in " ".join(done.stdout.split())


def test_logs_from_elsewhere_join_a_run_folder(folder, tmp_path):
    (tmp_path / "other.log").write_text("node:70:1 [0] a.cc:1 NCCL WARN Failed to initialize any NET plugin\n")
    report = verb.read([folder.path], [str(tmp_path / "other.log")])
    assert {one.slug: one.ranks for one in report.nccl.troubles} == {"nccl_duplicate_gpu": (1,), "nccl_plugin": (0,)}


def test_what_is_cut_off_is_shown_by_the_command_that_names_the_logs(folder, tmp_path):
    lines = [f"node:70:1 [0] a.cc:{number} NCCL WARN word {'x' * number} of no catalogue\n" for number in range(1, 9)]
    late = "[rank0]:[E1120 10:00:00.0 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: "
    (tmp_path / "other.log").write_text("".join(lines) + late + "WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600 ms\n")
    alone = run("--nccl-logs", tmp_path / "*.log").stdout
    assert f"nandiag report --nccl-logs '{tmp_path}/*.log' --json" in " ".join(alone.split())
    assert alone.index("number 5 did not end") < alone.index("no catalogue")
    joined = " ".join(run(folder.path.parent, "--nccl-logs", tmp_path / "other.log").stdout.split())
    assert f"nandiag report {folder.path} --nccl-logs {tmp_path}/other.log --json" in joined


def test_of_a_pattern_that_the_shell_took_apart_the_folder_is_named(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.log").write_text(f"node:70:1 [0] a.cc:1 NCCL WARN {'x' * number} of no catalogue\n")
    shown = " ".join(run("--nccl-logs", *sorted(tmp_path.glob("*.log"))).stdout.split())
    assert f"--nccl-logs '{tmp_path}/*' --json" in shown


def test_a_pattern_that_names_nothing_is_one_sentence(tmp_path):
    with pytest.raises(NothingToReadError, match="No file fits"):
        verb.read([], [str(tmp_path / "*.log")])


def test_a_log_that_cannot_be_read_is_noted(folder, tmp_path):
    (folder.nccl / "z.log").mkdir()
    assert any("z.log" in note for note in verb.read([folder.path]).notes)

"""Reading a run folder: what can be known is read, what cannot is a note, and nothing raises, hangs or fills memory."""

import json
import os
from pathlib import Path

import pytest

from nandiag.events import Attached, Harm, History, Note, Record, encode
from nandiag.events.standing import Standing
from nandiag.store import files, reader
from nandiag.store.layout import RunFolder, standing_of
from nandiag.store.run import AgentEnd, AgentStart, RankEnd, RunInfo
from nandiag.store.writer import write_whole

HELLO = Attached(0, 2, 0, 0, "node", 7, "site", "3.12", "0.1.0")


def line(event, seq=0):
    return encode(Record(seq, 1.0, event)) + "\n"


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.make()
    write_whole(made.run_file, RunInfo("r1", ("train.py",), "2026", world_size=2))
    return made


def put(folder, content, rank=0, attempt=0, pid=7):
    path = folder.rank_file(rank, attempt, pid)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def only(folder):
    (log,) = reader.read_run([folder]).logs
    return log


def test_events_come_back_in_order(folder):
    put(folder, line(HELLO) + line(Note("a"), 1) + line(Note("b"), 2))
    log = only(folder)
    assert (log.rank, log.attempt, log.pid, log.attached) == (0, 0, 7, HELLO)
    assert [one.event for one in log.records[1:]] == [Note("a"), Note("b")]
    assert log.notes == ()


@pytest.mark.parametrize(("steps", "read"), [((5, 12), True), ((5, 5), False), ((5, None), False)])
def test_where_the_ranks_stood_at_the_end_is_read_where_they_saw_harm_at_unlike_steps(folder, steps, read):
    write_whole(folder.agent_end("a"), AgentEnd("node", 1, 0, 0, "succeeded"))
    for rank, step in enumerate(steps):
        harm = () if step is None else (Harm("loss", step, "loss", (), 1, 1),)
        path = put(folder, "".join(line(one, seq) for seq, one in enumerate((HELLO, *harm))), rank=rank)
        write_whole(standing_of(path), Standing("left", 1.0, 9, 4))
    assert [log.standing is not None for log in reader.read_run([folder]).logs] == [read, read]


def test_a_torn_last_line_is_left_out_with_a_note(folder):
    put(folder, line(HELLO) + line(Note("a"), 1)[:-9])
    log = only(folder)
    assert [one.event for one in log.records] == [HELLO]
    assert log.notes == ("The last line is torn (the process was killed while writing it) and was left out.",)


def test_foreign_lines_are_counted_and_the_rest_is_read(folder):
    put(folder, line(HELLO).encode() + b"\x00\xff\xfe garbage\n\n[]\n" + line(Note("a"), 1).encode())
    log = only(folder)
    assert [one.event for one in log.records] == [HELLO, Note("a")]
    assert log.notes == ("Left out, being no events: 2 lines.",)


def test_a_binary_file_is_a_note(folder):
    put(folder, bytes(range(256)) * 100)
    assert only(folder).records == ()


def test_an_empty_file_is_no_handshake(folder):
    put(folder, "")
    assert only(folder).attached is None


def test_a_huge_line_costs_neither_memory_nor_the_lines_after_it(folder, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 1000)
    put(folder, line(HELLO) + line(Note("x" * 5000), 1) + line(Note("a"), 2))
    log = only(folder)
    assert [one.event for one in log.records] == [HELLO, Note("a")]
    assert log.notes == ("Left out, being no events: 1 line.",)


def test_the_newest_history_is_read_when_it_is_asked_for(folder):
    old, new = (History((step,), (None,), (None,), (0.1,), (None,)) for step in (1, 2))
    put(folder, line(HELLO) + line(old, 1) + line(new, 2) + line(Note("a"), 3))
    record = reader.read_run([folder])
    (log,) = record.logs
    assert [one.event for one in log.records] == [HELLO, Note("a")]
    assert (log.count, log.left_out) == (4, 0)
    assert record.history(log) == new
    Path(log.path).unlink()
    assert record.history(log) is None


def test_many_foreign_files_are_counted(folder):
    for number in range(30):
        (folder.ranks / f"mine{number:02}.jsonl").write_text("")
    notes = reader.read_run([folder]).notes
    assert len(notes) == 21
    assert notes[-1] == "10 more files: not a rank file of nandiag, left out."


def test_kinds_of_a_newer_version_are_told(folder):
    put(folder, line(HELLO) + line(Note("a")).replace('"note"', '"comet"'))
    assert only(folder).notes == ("Not understood, written by a newer nandiag: 1 event.",)


def test_a_fifo_is_never_waited_for(folder):
    os.mkfifo(folder.rank_file(0, 0, 7))
    record = reader.read_run([folder])
    assert record.logs == ()
    assert any("not a regular file" in note for note in record.notes)


def test_a_link_is_not_followed(folder, tmp_path):
    (tmp_path / "secret").write_text(line(HELLO))
    folder.rank_file(0, 0, 7).symlink_to(tmp_path / "secret")
    record = reader.read_run([folder])
    assert record.logs == ()
    assert any("cannot be read" in note for note in record.notes)


def test_files_of_others_are_named_and_left_out(folder):
    (folder.ranks / "mine.jsonl").write_text("")
    (folder.ranks / "notes.txt").write_text("")
    assert reader.read_run([folder]).notes == ("mine.jsonl: not a rank file of nandiag, left out.",)


def test_missing_parts_are_notes(tmp_path):
    record = reader.read_run([RunFolder(tmp_path)])
    assert (record.info, record.logs, record.agents) == (None, (), ())
    assert set(record.notes) == {"run.json is missing.", "ranks/ is missing.", "agents/ is missing."}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"id": 3}', b"\xff\xfe", b"[" * 50_000, b'{"id": "x", "command": {}, "started": ""}'],
)
def test_a_damaged_run_file_is_a_note(folder, content):
    folder.run_file.write_bytes(content)
    put(folder, line(HELLO))
    record = reader.read_run([folder])
    assert record.info is None
    assert len(record.logs) == 1
    assert record.notes == ("run.json is damaged and was left out.",)


def test_agents_are_read_and_a_number_beyond_any_float_is_damage(folder):
    end = AgentEnd("node", 5, 0, 1, "failed", ranks=(RankEnd(0, signal=9, time=1.5),))
    write_whole(folder.agents / "node-5.json", end)
    (folder.agents / "node-6.json").write_text(
        json.dumps({"host": "n", "pid": 1, "node_rank": 0, "exit_code": 0, "state": "x", "ranks": [
            {"rank": 0, "time": 10**400}]})
    )  # fmt: skip
    record = reader.read_run([folder])
    assert record.agents == (end,)
    assert record.notes == ("node-6.json is damaged and was left out.",)


def test_several_folders_are_joined_by_rank(folder, tmp_path):
    put(folder, line(HELLO), rank=1)
    other = RunFolder(tmp_path / "other")
    other.make()
    write_whole(other.run_file, RunInfo("r1", (), "2026"))
    put(other, line(HELLO), rank=0)
    record = reader.read_run([folder, other])
    assert [log.rank for log in record.logs] == [0, 1]
    assert record.notes == ()


def test_folders_of_different_runs_are_told(folder, tmp_path):
    other = RunFolder(tmp_path / "other")
    other.make()
    write_whole(other.run_file, RunInfo("r2", (), "2026"))
    assert reader.read_run([folder, other]).notes == ("The folders hold different runs: r1, r2.",)


@pytest.mark.parametrize(
    ("content", "steps"),
    [(b'{"steps": 5, "time": 2.0}  \n', 5), (b"", None), (b"[1]", None), (b'{"steps": "x"}', None)],
)
def test_the_pulse(folder, content, steps):
    path = put(folder, line(HELLO))
    Path(str(path).replace(".jsonl", ".pulse")).write_bytes(content)
    pulse = only(folder).pulse
    assert (pulse.steps if pulse else None) == steps


@pytest.mark.parametrize(
    ("mark", "age", "lost"), [("", 0, 0), ("", 100, 1), (".lost", 0, 1), (".json", 100, 0), (".json", 0, 0)]
)
def test_a_launcher_without_an_end_is_lost_once_it_was_silent_for_long(folder, mark, age, lost):
    start = folder.agent_start("far-7")
    write_whole(start, AgentStart("far", 7))
    when = start.stat().st_mtime - age
    os.utime(start, (when, when))
    if mark:
        start.with_suffix(mark).write_text("{}")
    record = reader.read_run([folder])
    assert [agent.name for agent in record.starts] == ["far-7"]
    assert len(record.lost) == lost

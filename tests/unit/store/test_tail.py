"""Rank files are followed while they grow: each whole line once."""

import os

from nandiag.events import Note, Record, encode
from nandiag.store import tail as tailing
from nandiag.store.tail import Tail


def line(text, seq=0):
    return encode(Record(seq, 1.0, Note(text))) + "\n"


def texts(fresh):
    return [one.record.event.text for one in fresh]


def test_each_line_once_and_whole(tmp_path):
    path = tmp_path / "r00003-a1-p77.jsonl"
    tail = Tail(tmp_path)
    assert tail.poll() == []
    path.write_text(line("a") + line("b")[:9])
    (first,) = tail.poll()
    assert (first.rank, first.attempt, first.pid, first.record.event) == (3, 1, 77, Note("a"))
    assert tail.poll() == []
    with path.open("a") as file:
        file.write(line("b")[9:] + line("c"))
    assert texts(tail.poll()) == ["b", "c"]
    assert tail.poll() == []


def test_broken_and_foreign_lines_are_passed_over(tmp_path):
    (tmp_path / "r00000-a0-p1.jsonl").write_bytes(b"\x00\xff\n[]\n\n{}\n" + line("x").encode())
    (tmp_path / "notes.jsonl").write_text(line("no"))
    assert texts(Tail(tmp_path).poll()) == ["x"]


def test_reads_in_bounded_portions(tmp_path, monkeypatch):
    monkeypatch.setattr(tailing, "PORTION", 100)
    path = tmp_path / "r00000-a0-p1.jsonl"
    path.write_text("".join(line(f"{number:04d}") for number in range(50)))
    tail = Tail(tmp_path)
    assert len(tail.poll()) <= 2
    assert len(tail.drain(portions=100)) >= 48


def test_an_endless_line_costs_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(tailing, "PORTION", 1_000)
    monkeypatch.setattr(tailing, "MAX_LINE", 2_000)
    (tmp_path / "r00000-a0-p1.jsonl").write_text("x" * 50_000 + "\n" + line("after"))
    tail = Tail(tmp_path)
    assert texts(tail.drain(portions=100)) == ["after"]
    assert all(len(file.rest) <= 2_000 for file in tail._files.values())


def test_links_and_pipes_are_left_alone(tmp_path):
    (tmp_path / "secret").write_text(line("secret"))
    folder = tmp_path / "ranks"
    folder.mkdir()
    (folder / "r00000-a0-p1.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "r00001-a0-p2.jsonl")
    assert Tail(folder).poll() == []


def test_no_folder_is_no_news(tmp_path):
    assert Tail(tmp_path / "gone").poll() == []


def test_an_unchanged_file_is_not_opened(tmp_path, monkeypatch):
    (tmp_path / "r00000-a0-p1.jsonl").write_text(line("a"))
    tail = Tail(tmp_path)
    assert len(tail.poll()) == 1
    monkeypatch.setattr(tailing.os, "open", lambda *_: pytest_fail())
    assert tail.poll() == []


def pytest_fail():
    raise AssertionError("opened a file that has not grown")

"""Writing a rank file: whole lines, bounded, and a full disk costs one line and no more."""

import os
import shutil
import stat
from itertools import count
from pathlib import Path

import pytest

from nandiag.events import Note, decode
from nandiag.store import writer
from nandiag.store.layout import pulse_of
from nandiag.store.reader import read_rank
from nandiag.store.writer import RankWriter, write_whole


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r00000-a0-p7.jsonl"


def notes(path):
    return [decode(one).event.text for one in path.read_text().splitlines()]


def test_lines_are_in_the_file_at_once_and_numbered(path):
    made = RankWriter(path)
    assert made.write(Note("a"), 1.0)
    assert made.write(Note("b\nc"), 2.0)
    assert notes(path) == ["a", "b\nc"]
    assert [decode(one).seq for one in path.read_text().splitlines()] == [0, 1]
    assert path.stat().st_mode & 0o077 == 0
    made.close()


def test_the_file_is_bounded_in_events_and_says_so_once(path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_EVENTS", 3)
    made = RankWriter(path)
    assert [made.write(Note(str(n)), 1.0) for n in range(6)] == [True, True, True, False, False, False]
    assert notes(path) == ["0", "1", "2", "The event file is full after 3 events; later ones were left out."]
    made.write(Note("the end"), 1.0, urgent=True)
    assert notes(path)[-1] == "the end"
    made.close()


def test_the_file_is_bounded_in_bytes(path, monkeypatch):
    monkeypatch.setattr(writer, "MAX_BYTES", 500)
    made = RankWriter(path)
    for _ in range(50):
        made.write(Note("x" * 100), 1.0)
    assert path.stat().st_size < 900
    made.close()


def test_a_disk_that_fills_up_in_a_line_tears_that_line_alone(path, monkeypatch):
    real, calls = os.write, count()

    def short(number, data):
        return real(number, data[:20] if next(calls) == 1 else data)

    made = RankWriter(path)
    made.write(Note("a"), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        made.write(Note("before"), 1.0)
        with pytest.raises(OSError, match="disk is full"):
            made.write(Note("torn"), 1.0)
    made.write(Note("after"), 1.0)
    made.close()
    log = read_rank(path)
    assert [one.event.text for one in log.records] == ["a", "before", "after"]


def test_a_full_disk_raises_and_the_file_stays_readable(path, monkeypatch):
    made = RankWriter(path)
    made.write(Note("a"), 1.0)
    real, calls = os.write, count()

    def full(number, data):
        if next(calls):
            raise OSError(28, "No space left on device")
        return real(number, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError):
                made.write(Note("lost"), 1.0)
    made.write(Note("after"), 1.0)
    made.close()
    assert [one.event.text for one in read_rank(path).records] == ["a", "after"]


def test_the_pulse_is_written_in_place(path):
    made = RankWriter(path)
    made.pulse(10, 1.0)
    size = pulse_of(path).stat().st_size
    made.pulse(123_456, 2.0)
    assert pulse_of(path).stat().st_size == size
    made.close()
    assert read_rank(path).pulse.steps == 123_456


def test_close_can_be_called_twice(path):
    made = RankWriter(path)
    made.pulse(1, 1.0)
    made.close()
    made.close()


def test_a_folder_that_was_removed_is_made_again_with_all_that_stood_there(tmp_path):
    path = tmp_path / "logs" / "run" / "ranks" / "r00000-a0-p7.jsonl"
    path.parent.mkdir(parents=True)
    made = RankWriter(path)
    made.write(Note("before"), 1.0)
    made.pulse(4, 1.0)
    shutil.rmtree(tmp_path / "logs")
    made.write(Note("after"), 2.0, urgent=True)
    made.pulse(5, 2.0)
    assert notes(path) == [
        "before",
        "Its log was removed while the run went on; what stood there was written again.",
        "after",
    ]
    assert [decode(one).seq for one in path.read_text().splitlines()] == [0, 1, 2]
    assert '"steps": 5' in pulse_of(path).read_text()
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, *path.parents[:3])]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_link_is_not_written_through(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        RankWriter(path)
    assert not (tmp_path / "elsewhere").exists()


def test_write_whole_replaces_or_leaves_alone(tmp_path):
    target = tmp_path / "report.json"
    write_whole(target, {"a": float("nan")})
    assert target.read_text() == '{\n  "a": "nan"\n}\n'
    with pytest.raises(TypeError):
        write_whole(target, {"a": object()})
    assert target.read_text() == '{\n  "a": "nan"\n}\n'
    assert [one.name for one in tmp_path.iterdir()] == ["report.json"]


def test_write_whole_leaves_nothing_behind_when_the_disk_is_full(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError):
        write_whole(tmp_path / "report.json", {})
    assert list(tmp_path.iterdir()) == []

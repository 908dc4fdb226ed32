"""What a step does to files and to the world outside is done once: a replay leads it nowhere, or is refused."""

import contextlib
import contextvars
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.faults.acting import BAD, looked, train
from tests.unit.runtime.belongings.written import lines


def appends():
    with open("log", "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write("line\n")


def appends_by_path():
    with Path("log").open("a", encoding="utf-8") as file:
        print("line", file=file)


def appends_below():
    number = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(number, b"line\n")
    os.close(number)


@pytest.mark.parametrize("act", [appends, appends_by_path, appends_below])
def test_a_file_that_the_step_opens_is_written_once(act, work, here):
    worker = work()
    steps = train(act)
    assert looked(worker)[0] == "found"
    assert lines("log") == ["line"] * steps


def adds():
    with open("log", "a+", encoding="utf-8") as file:  # noqa: PTH123
        file.write("line\n")
        file.seek(0)
        assert file.read().endswith("line\n")
        assert file.name == "log"


def replaces():
    Path("log").touch()
    with Path("log").open("r+", encoding="utf-8") as file:
        held = file.read()
        file.seek(0)
        file.write(held + "line\n")


def begins_anew():
    held = Path("log").read_text(encoding="utf-8") if Path("log").exists() else ""
    with Path("log").open("w+b") as file:
        file.write((held + "line\n").encode())


def adds_below():
    number = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(number, b"line\n")
    assert os.pread(number, 5, 0) == b"line\n"
    os.close(number)


def maps():
    if not Path("log").exists():
        Path("log").write_bytes(b"")
    size = Path("log").stat().st_size
    with Path("log").open("r+b") as file:
        file.truncate(size + 5)
    np.memmap("log", "u1", "r+", offset=0)[size:] = list(b"line\n")


def temporary_by_name():
    with tempfile.NamedTemporaryFile(mode="w", dir=".", delete=False) as file:
        file.write("line\n")
    appends()


def temporary_without_name():
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"line\n")
        file.seek(0)
        assert file.read() == b"line\n"
    appends()


UPDATES = [adds, replaces, begins_anew, adds_below, temporary_by_name, temporary_without_name]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("act", UPDATES)
def test_a_file_that_the_step_opens_to_read_and_write_is_written_once(act, ends, work, here):
    worker = work(on_anomaly="stop" if ends else "continue")
    with contextlib.suppress(SystemExit):
        train(act)
    assert looked(worker)[0] == "found"
    assert lines("log") == ["line"] * (BAD + 1 if ends else 4)
    made = [one for one in here.iterdir() if one.name not in {"log", "run"}]
    assert len(made) == (len(lines("log")) if act is temporary_by_name else 0)


def test_where_the_process_stands_and_its_variables(work, here, monkeypatch):
    monkeypatch.setenv("COUNT", "0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    local, var = threading.local(), contextvars.ContextVar("var", default=0)
    local.count = 0
    Path("deep").mkdir()

    def act():
        os.environ["COUNT"] = str(int(os.environ["COUNT"]) + 1)
        local.count += 1
        var.set(var.get() + 1)
        sys.path.append("deep")
        os.chdir("deep" if Path("deep").is_dir() else "..")

    worker = work()
    steps = train(act)
    assert looked(worker)[0] == "found"
    assert (os.environ["COUNT"], local.count, var.get()) == (str(steps), steps, steps)
    assert Path.cwd() == here
    assert sys.path.count("deep") == steps


def puts_in_place():
    part = Path("part")
    with part.open("w", encoding="utf-8") as file:
        print("line", file=file)
    part.replace("whole")


def takes_away():
    Path("part").write_text("", encoding="utf-8")
    Path("part").unlink()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("act", [puts_in_place, takes_away])
def test_a_file_that_was_written_nowhere_is_neither_moved_nor_removed(act, ends, work, here):
    worker = work(on_anomaly="stop" if ends else "continue")
    with contextlib.suppress(SystemExit):
        train(act)
    assert looked(worker)[0] == "found"
    left = [one.name for one in here.iterdir() if one.name in {"part", "whole"}]
    assert left == (["whole"] if act is puts_in_place else [])


@pytest.mark.parametrize("act", [Path.unlink, lambda path: path.replace("there")])
def test_where_the_run_ends_nothing_is_removed_or_moved_a_second_time(act, work, here):
    worker = work(on_anomaly="stop")
    steps = []

    def acts():
        path = Path("kept")
        if not steps:
            path.touch()
        steps.append(1)
        if path.exists():
            act(path)
        path.touch()

    with pytest.raises(SystemExit):
        train(acts)
    assert looked(worker)[0] == "found"
    assert Path("kept").exists()

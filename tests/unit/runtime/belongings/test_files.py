"""What a step does to files and to the world outside is done once: a replay leads it nowhere, or is refused."""

import contextlib
import contextvars
import cProfile
import csv
import gzip
import io
import logging
import os
import pstats
import queue
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.belongings.aside import Aside
from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.world.files import OpenFiles
from tests.faults.acting import BAD, Net, looked, train

SECONDS = 20


class Holder:
    """An object of the script's."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that the process stands in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(name):
    return Path(name).read_text(encoding="utf-8").splitlines()


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


def by_a_name_of_its_own(number):
    write = os.write
    return lambda: write(number, b"line\n")


def by_place(number):
    return lambda: os.pwrite(number, b"line\n", os.fstat(number).st_size)


def by_pieces(number):
    return lambda: os.writev(number, [b"li", b"ne\n"])


def by_pieces_at_a_place(number):
    return lambda: os.pwritev(number, [b"li", b"ne\n"], os.fstat(number).st_size)


def by_length(number):
    return lambda: os.ftruncate(number, os.fstat(number).st_size + 5)


def by_reading(number):
    Path("rows").write_bytes(b"line\n" * 9)
    rows = os.open("rows", os.O_RDONLY)

    def act():
        row = os.read(rows, 5)
        os.pwrite(number, row, os.lseek(rows, 0, os.SEEK_CUR) - 5)

    return act


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    "writer", [by_a_name_of_its_own, by_place, by_pieces, by_pieces_at_a_place, by_length, by_reading]
)
def test_a_file_that_is_open_by_its_number_is_written_once(writer, ends, work, here):
    worker = work(on_anomaly="stop" if ends else "continue")
    number = os.open("log", os.O_RDWR | os.O_CREAT)
    with contextlib.suppress(SystemExit):
        train(writer(number))
    assert looked(worker)[0] == "found"
    assert os.fstat(number).st_size == 5 * (BAD + 1 if ends else 4)
    os.close(number)


def test_an_array_is_dumped_once_where_the_run_ends(work, here):
    worker = work(on_anomaly="stop")
    with Path("log").open("wb") as file:
        with pytest.raises(SystemExit):
            train(lambda: np.ones(1).tofile(file))
        assert looked(worker)[0] == "found"
    assert Path("log").stat().st_size == 8 * (BAD + 1)


@pytest.mark.parametrize("ends", [False, True])
def test_a_step_that_waits_for_what_was_there_once_is_not_waited_for(ends, work):
    worker, asked = work(on_anomaly="stop" if ends else "continue"), queue.Queue()
    for one in range(BAD + 1 if ends else 4):
        asked.put(one)
    with contextlib.suppress(SystemExit):
        train(lambda: asked.get(timeout=SECONDS))
    assert looked(worker)[0] == "refused"
    assert asked.qsize() == 0


def test_a_semaphore_has_as_much_room_as_it_had(work):
    worker, room = work(), threading.Semaphore(5)
    steps = train(room.acquire)
    assert looked(worker)[0] == "found"
    assert room._value == 5 - steps  # its own methods are held, not found in the class


def test_a_semaphore_that_is_full_is_not_waited_for(work):
    worker, room = work(on_anomaly="stop"), threading.Semaphore(BAD + 1)
    with pytest.raises(SystemExit):
        train(room.acquire)
    assert looked(worker)[0] == "refused"


def test_a_semaphore_that_other_threads_use_is_refused_where_the_run_goes_on(work):
    worker, room, over = work(), threading.Semaphore(4), threading.Event()
    other = threading.Thread(target=over.wait, args=(SECONDS,))
    other.start()
    train(room.acquire)
    over.set()
    other.join(SECONDS)
    assert looked(worker)[0] == "refused"
    assert not room.acquire(blocking=False)


def by_text(file):
    return lambda: file.write("line\n")


def by_print(file):
    return lambda: print("line", file=file, flush=True)


def by_csv(file):
    writer = csv.writer(file, lineterminator="\n")  # it keeps the method of the file
    return lambda: writer.writerow(["line"])


def by_bytes(file):
    return lambda: file.buffer.write(b"line\n")


def by_number(file):
    return lambda: os.write(file.fileno(), b"line\n")


def by_handler(file):
    handler = logging.StreamHandler(file)
    return lambda: handler.emit(logging.makeLogRecord({"msg": "line"}))


def by_a_kept_method(file):
    write = file.write
    return lambda: write("line\n")


@pytest.mark.parametrize("writer", [by_text, by_print, by_csv, by_bytes, by_number, by_handler, by_a_kept_method])
def test_a_file_that_is_open_is_written_once(writer, work, here):
    worker = work()
    with Path("log").open("w", encoding="utf-8", newline="") as file:
        steps = train(writer(file))
    assert looked(worker)[0] == "found"
    assert lines("log") == ["line"] * steps


def test_a_compressed_file_is_written_once(work, here):
    worker = work()
    with gzip.open("log", "wt", encoding="utf-8") as file:
        steps = train(by_text(file))
    assert looked(worker)[0] == "found"
    with gzip.open("log", "rt", encoding="utf-8") as file:
        assert len(file.readlines()) == steps


@pytest.mark.parametrize("kind", [io.StringIO, io.BytesIO])
def test_a_file_in_memory_is_written_once(kind, work):
    worker, file = work(), kind()
    word = "line\n" if kind is io.StringIO else b"line\n"
    write = file.write
    steps = train(lambda: write(word))
    assert looked(worker)[0] == "found"
    assert file.getvalue() == word * steps
    assert file.tell() == len(word) * steps


def test_what_the_step_reads_stands_where_it_stood(work, here):
    Path("rows").write_text("".join(f"row {one}\n" for one in range(9)), encoding="utf-8")
    seen = io.StringIO()
    numbers = iter(range(9))
    worker = work()
    with Path("rows").open(encoding="utf-8") as file:
        steps = train(lambda: seen.write(f"{file.readline()[4]} {next(numbers)},"))
        assert looked(worker)[0] == "found"
        assert file.readline() == f"row {steps}\n"
    assert seen.getvalue() == "0 0,1 1,2 2,3 3,"
    assert next(numbers) == steps


def test_rows_that_the_step_takes_come_once(work, here):
    Path("rows").write_text("".join(f"{one}\n" for one in range(5000)), encoding="utf-8")
    seen = []
    worker = work()
    with Path("rows").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        steps = train(lambda: seen.append(next(rows)[0]))
        assert looked(worker)[0] == "found"
        assert next(rows) == [str(steps)]
    assert seen == ["0", "1", "2", "3"]


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


def starts():
    subprocess.run(["true"], check=False)


def removes():
    Path("log").unlink(missing_ok=True)


def renames():
    with contextlib.suppress(FileNotFoundError):
        Path("log").replace("whole")


def makes():
    Path("made").mkdir(exist_ok=True)


def stores():
    with contextlib.closing(sqlite3.connect("data")) as data:
        data.execute("create table if not exists t (n)")


def temporary():
    with tempfile.TemporaryDirectory():
        pass


def forks():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def dumps(held=[]):  # noqa: B006 - open from the first call on
    if not held:
        held.append(open("array", "wb"))  # noqa: PTH123, SIM115
    np.ones(1).tofile(held[0])


@pytest.mark.parametrize("act", [starts, removes, renames, makes, stores, temporary, forks, dumps])
def test_what_cannot_be_led_nowhere_is_refused_where_the_run_goes_on(act, work, here):
    worker, done = work(), logging.makeLogRecord({"count": 0})  # of a library: it is not put back

    def acts():
        act()
        done.count += 1

    steps = train(acts)
    outcome, reason = looked(worker)
    assert outcome == "refused"
    assert "the run goes on" in reason
    assert done.count == steps


def test_work_for_other_threads_is_refused_where_the_run_goes_on(work):
    asked, taken = queue.Queue(), []
    eater = threading.Thread(target=lambda: taken.extend(iter(asked.get, None)), daemon=True)
    eater.start()
    worker = work()
    steps = train(lambda: asked.put(1))
    asked.put(None)
    eater.join(SECONDS)
    outcome, reason = looked(worker)
    assert (outcome, len(taken)) == ("refused", steps)
    assert "Queue.put" in reason


def test_work_given_by_a_method_that_is_kept_is_refused_too(work):
    worker, asked = work(), queue.Queue()
    give = asked.put
    steps = train(lambda: give(1))
    assert looked(worker)[0] == "refused"
    assert asked.qsize() == steps


def test_what_was_kept_of_what_stood_for_a_function_does_its_work(here):
    aside = Aside(Bystanders())
    aside.begin()
    kept = os.write
    aside.close()
    number = os.open("log", os.O_WRONLY | os.O_CREAT)
    kept(number, b"line\n")
    os.close(number)
    assert kept is not os.write
    assert lines("log") == ["line"]


def test_a_pool_of_threads_is_refused_where_the_run_goes_on(work):
    worker, done = work(), queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        steps = train(lambda: pool.submit(done.put, 1).result(SECONDS))
    assert looked(worker)[0] == "refused"
    assert done.qsize() == steps


def test_where_the_run_ends_the_step_is_run_again(work, here):
    worker = work(on_anomaly="stop")
    with pytest.raises(SystemExit):
        train(starts)
    assert looked(worker)[0] == "found"


@pytest.mark.parametrize("way", ["trace", "profile", "cProfile"])
def test_the_scripts_own_tracer_sees_the_step_once(way, work):
    seen = queue.SimpleQueue()

    def look(frame, event, _):
        if event == "call" and frame.f_code is Net.forward.__code__:
            seen.put(1)
        return look

    worker, before = work(), (sys.gettrace(), sys.getprofile())
    profiler = cProfile.Profile()
    try:
        {"trace": sys.settrace, "profile": sys.setprofile, "cProfile": lambda _: profiler.enable()}[way](look)
        steps = train(lambda: None)
    finally:
        profiler.disable()
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert looked(worker)[0] == "found"
    calls = {key[2]: times[0] for key, times in pstats.Stats(profiler).stats.items()} if way == "cProfile" else {}
    assert calls.get("forward", seen.qsize()) == steps


def test_the_scripts_own_class_of_tensors_sees_no_call_of_ours(work):
    def steps(seen):
        class Mine(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                seen.append(getattr(func, "__name__", "?"))
                return super().__torch_function__(func, types, args, kwargs or {})

        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            loss = (model(torch.ones(3, 4).as_subclass(Mine)).square() * (step != BAD)).log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return seen

    plain = steps([])
    worker = work()
    assert steps([]) == plain
    assert looked(worker)[0] == "found"


def test_what_a_replay_made_says_nothing_as_it_goes(work, capsys):
    class Loud:
        def __del__(self):
            print("gone")  # noqa: T201 - scripts print

    def act():
        held.thing = Loud()

    held = Holder()
    worker = work()
    steps = train(act)
    assert looked(worker)[0] == "found"
    assert capsys.readouterr().out.count("gone") == steps - 1


def test_a_folder_can_be_removed_when_a_replay_is_over(work, here):
    worker = work()
    train(starts)
    assert looked(worker)[0] == "refused"
    Path("made").mkdir()
    shutil.rmtree("made")
    starts()


def test_another_thread_writes_on_and_nothing_of_its_is_lost(here):
    with Path("log").open("w", encoding="utf-8") as file:
        go, done = threading.Event(), threading.Event()

        def other():
            go.wait(SECONDS)
            file.write("theirs\n")
            done.set()

        thread = threading.Thread(target=other)
        thread.start()
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        go.set()
        done.wait(SECONDS)
        files.close()
        file.write("after\n")
        thread.join(SECONDS)
    assert lines("log") == ["before", "theirs", "after"]


def test_what_another_process_writes_to_the_same_file_meanwhile_is_not_written_over(here):
    with Path("log").open("w", encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        subprocess.run(["echo", "theirs"], stdout=file.fileno(), check=True)
        file.flush()
        files.close()
        file.write("after\n")
    assert lines("log") == ["before", "theirs", "after"]


def test_a_file_that_is_only_written_to_and_sought_stands_where_it_stood(here):
    with Path("log").open("w", encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.seek(0)
        file.write("swallowed\n")
        files.close()
        file.write("after\n")
    assert lines("log") == ["before", "after"]


def test_a_full_disk_loses_nothing_that_waits_in_a_buffer(here):
    class Full(io.FileIO):
        full = True

        def write(self, data):
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(data)

    raw = Full("log", "w")
    with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as file:
        file.write("before\n")
        files = OpenFiles(Bystanders())
        files.begin()
        file.write("swallowed\n")
        files.close()
        Full.full = False
    assert lines("log") == ["before"]


def test_nothing_of_ours_stays_on_a_file(here):
    with Path("log").open("w", encoding="utf-8") as file:
        before = [dict(vars(one)) for one in (file, file.buffer, file.buffer.raw)]
        files = OpenFiles(Bystanders())
        files.begin()
        files.close()
        assert [dict(vars(one)) for one in (file, file.buffer, file.buffer.raw)] == before
    assert open is io.open


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

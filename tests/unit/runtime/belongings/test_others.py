"""What a step does together with other threads and processes: led nowhere, waited for, or refused, and never hung."""

import asyncio
import atexit
import collections
import io
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import numpy as np
import pytest

from nandiag.runtime.belongings.world import patience
from tests.faults.acting import looked, train

SECONDS = 20


@pytest.fixture
def not_alone():
    """One thread that stays until the test is over, as most scripts have one."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join(SECONDS)


@pytest.mark.parametrize("begin", [threading.Thread, lambda target: threading.Timer(0.05, target)])
def test_what_a_thread_that_the_step_starts_writes_is_there_once(begin, work, tmp_path):
    worker, begun = work(), []

    def writes():
        time.sleep(0.05)
        with (tmp_path / "log").open("a", encoding="utf-8") as file:
            file.write("line\n")

    def starts():
        begun.append(begin(target=writes))
        begun[-1].start()

    steps = train(starts, after=lambda: begun[-1].join(SECONDS))
    assert looked(worker)[0] == "found"
    assert len(begun) == steps
    assert (tmp_path / "log").read_text(encoding="utf-8").count("line") == steps


def test_a_lock_that_the_loop_lets_go_is_not_waited_for_for_ever(work, monkeypatch):
    monkeypatch.setattr(patience, "SECONDS", 0.5)
    worker, lock = work(), threading.Lock()
    began = time.monotonic()
    train(lock.acquire, after=lock.release)
    assert time.monotonic() - began < SECONDS
    assert looked(worker)[0] == "refused"
    assert "waits" in looked(worker)[1]
    assert not lock.locked()


def test_a_step_that_works_for_long_is_not_taken_for_one_that_waits(work, monkeypatch):
    monkeypatch.setattr(patience, "SECONDS", 0.5)
    worker = work()

    def works(seconds=1.5):
        until = time.process_time() + seconds
        while time.process_time() < until:
            sum(range(1000))

    train(works)
    assert looked(worker)[0] == "found"


class Sender:
    """Hands on what it is given in a thread of its own, as those that report numbers to a server do."""

    def __init__(self):
        self.waiting, self.sent = collections.deque(), []
        self.told, self.over = threading.Condition(), False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            with self.told:
                self.told.wait_for(lambda: self.waiting or self.over)
                if not self.waiting:
                    return
                item = self.waiting.popleft()
            self.sent.append(item)

    def send(self):
        with self.told:
            self.waiting.append(1)
            self.told.notify()

    def close(self):
        with self.told:
            self.over = True
            self.told.notify()
        self.thread.join(SECONDS)


def test_what_is_handed_to_a_thread_that_waits_is_handed_once(work):
    worker, sender = work(), Sender()
    try:
        steps = train(sender.send)
    finally:
        sender.close()
    assert looked(worker)[0] == "refused"
    assert len(sender.sent) == steps


def test_an_event_that_is_set_already_may_be_set_again(work, not_alone):
    worker, event = work(), threading.Event()
    train(event.set)
    assert looked(worker)[0] == "found"


def put(loop, queue, seen):
    queue.put_nowait(1)


def call_soon(loop, queue, seen):
    loop.call_soon(seen.append, 1)


def call_later(loop, queue, seen):
    loop.call_later(0.001, seen.append, 1)


def begin_task(loop, queue, seen):
    async def task():
        seen.append(1)

    loop.create_task(task())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", [put, call_soon, call_later, begin_task])
def test_what_the_loop_of_events_is_to_do_is_done_once(act, work):
    worker, seen = work(), []

    async def main():
        queue = asyncio.Queue()
        loop = asyncio.get_running_loop()
        steps = train(lambda: act(loop, queue, seen))
        await asyncio.sleep(0.05)
        return steps - queue.qsize()

    assert asyncio.run(main()) == len(seen)
    assert looked(worker)[0] == "refused"


def count_in_value(shared):
    with shared.get_lock():
        shared.value += 1


def test_what_other_processes_may_see_is_counted_once(work):
    worker, shared = work(), multiprocessing.Value("i", 0)
    steps = train(lambda: count_in_value(shared))
    assert looked(worker)[0] == "refused"
    assert shared.value == steps


def test_memory_that_other_processes_may_see_is_written_once(work):
    worker, shared = work(), shared_memory.SharedMemory(create=True, size=1)
    shared.buf[0] = 0

    def count():
        shared.buf[0] += 1

    try:
        steps = train(count)
        assert looked(worker)[0] == "refused"
        assert shared.buf[0] == steps
    finally:
        shared.close()
        shared.unlink()


def test_what_goes_into_a_pipe_goes_there_once(work):
    worker = work()
    reader, writer = os.pipe()
    steps = train(lambda: os.write(writer, b"1"))
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert len(file.read()) == steps
    assert looked(worker)[0] == "refused"


def test_what_another_process_reads_is_written_once(work):
    worker = work()
    child = subprocess.Popen([sys.executable, "-c", "print(len(input()))"], stdin=-1, stdout=-1, text=True)
    steps = train(lambda: child.stdin.write("1"))
    out, _ = child.communicate("\n", timeout=SECONDS)
    assert int(out) == steps
    assert looked(worker)[0] == "refused"


def test_what_waits_in_the_buffer_of_a_socket_waits_once(work):
    worker = work()
    one, other = socket.socketpair()
    with one, other, one.makefile("w") as file:
        steps = train(lambda: print(1, file=file, flush=True))
        assert other.recv(100) == b"1\n" * steps
    assert looked(worker)[0] == "refused"


def test_a_file_without_a_buffer_is_read_on_where_it_stood(work, tmp_path):
    (tmp_path / "data").write_bytes(bytes(range(20)))
    worker, seen = work(), []
    with open(tmp_path / "data", "rb", buffering=0) as file:  # noqa: PTH123
        assert isinstance(file, io.FileIO)
        steps = train(lambda: seen.append(file.read(1)))
    assert looked(worker)[0] == "found"
    assert b"".join(seen) == bytes(range(steps))


def test_what_the_end_of_the_process_is_to_do_is_said_once(work):
    worker, calls = work(), []
    here = atexit._ncallbacks()
    try:
        steps = train(lambda: atexit.register(calls.append, 1))
        assert atexit._ncallbacks() - here == steps
    finally:
        atexit.unregister(calls.append)
    assert looked(worker)[0] == "found"


def test_bits_of_numpys_without_a_generator_go_on_where_they_were(work):
    worker, bits, seen = work(), np.random.PCG64(0), []
    train(lambda: seen.append(bits.random_raw()))
    assert looked(worker)[0] == "found"
    assert seen == np.random.PCG64(0).random_raw(4).tolist()


def test_what_an_array_of_objects_holds_is_put_back(work):
    worker, rows = work(), np.empty(2, dtype=object)
    rows[:] = [[], []]
    holder = [rows]
    steps = train(lambda: holder[0][0].append(1))
    assert looked(worker)[0] == "found"
    assert len(rows[0]) == steps

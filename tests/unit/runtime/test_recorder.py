"""The recorder: whole lines from any thread, what came before the rank was known, and silence where it fails."""

import errno
import json
import os
import signal
import threading

import pytest

from nandiag.events import Attached, Note, ProbeDark, decode
from nandiag.runtime.guard import guarded
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.recorder import RECORDER, Recorder
from nandiag.settings import Place, Settings
from nandiag.store.layout import pulse_of
from nandiag.store.writer import RankWriter

PLACE = Place(rank=3, world_size=8, local_rank=1, node_rank=2, attempt=1)


def texts(worker):
    return [event.text for event in worker.events(Note)]


def test_the_handshake_comes_first_and_what_waited_follows(recording):
    worker = recording(attach=False)
    RECORDER.emit(Note("early"))
    assert worker.events() == []
    RECORDER.attach(PLACE)
    RECORDER.emit(Note("late"))
    first, *rest = worker.events()
    assert isinstance(first, Attached)
    assert (first.rank, first.world_size, first.local_rank, first.node_rank, first.attempt, first.pid, first.how) == (
        3, 8, 1, 2, 1, os.getpid(), "site",
    )  # fmt: skip
    assert [event.text for event in rest] == ["early", "late"]
    assert [path.name for path in worker.folder.ranks.iterdir()] == [f"r00003-a1-p{os.getpid()}.jsonl"]


def test_what_waits_is_bounded(recording):
    worker = recording(attach=False)
    for number in range(1000):
        RECORDER.emit(Note(str(number)))
    RECORDER.attach(PLACE)
    assert texts(worker) == [str(number) for number in range(800, 1000)]


def test_a_process_attaches_once(recording):
    worker = recording()
    RECORDER.attach(PLACE)
    assert len(worker.events(Attached)) == 1
    assert worker.events(Attached)[0].rank == 0


def test_outside_of_a_run_nothing_happens():
    recorder = Recorder()
    recorder.configure(Settings(), "site")
    recorder.emit(Note("x"))
    recorder.attach(PLACE)
    recorder.pulse(3)
    assert (recorder.mute, recorder.attached) == (True, False)


def test_many_threads_write_whole_lines(recording):
    worker = recording()
    threads = [
        threading.Thread(target=lambda name=name: [RECORDER.emit(Note(f"{name} {n}")) for n in range(50)])
        for name in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (path,) = worker.folder.ranks.glob("*.jsonl")
    records = [decode(line) for line in path.read_text().splitlines()]
    assert [record.seq for record in records] == list(range(401))
    assert len(set(texts(worker))) == 400


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), TypeError("no JSON")])
def test_what_cannot_be_written_is_counted_and_told_later(error, recording, monkeypatch):
    worker = recording()

    def full(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(RankWriter, "write", full)
        for _ in range(3):
            RECORDER.emit(Note("lost"))
    RECORDER.emit(Note("kept"))
    assert texts(worker) == ["3 events were lost because the event file could not be written.", "kept"]


def test_a_folder_that_cannot_be_written_makes_it_mute(recording):
    worker = recording(attach=False)
    worker.folder.ranks.rmdir()
    RECORDER.attach(PLACE)
    assert (RECORDER.mute, RECORDER.attached) == (True, False)
    RECORDER.emit(Note("x"))


def test_the_pulse_is_the_newest_step(recording):
    worker = recording()
    RECORDER.pulse(1, now=True)
    RECORDER.pulse(2)
    RECORDER.pulse(41, now=True)
    (path,) = worker.folder.ranks.glob("*.jsonl")
    assert json.loads(pulse_of(path).read_text())["steps"] == 41


def test_a_pulse_that_takes_long_is_given_seldom(recording, monkeypatch):
    recording()
    given, now = [], [100.0]

    def slow(writer, step, *args):
        given.append(step)
        now[0] += 0.004  # as on a busy disk

    monkeypatch.setattr(RankWriter, "pulse", slow)
    monkeypatch.setattr("nandiag.runtime.recorder.time.monotonic", lambda: now[0])
    for step in range(2000):
        RECORDER.pulse(step)
        now[0] += 0.001
    assert given[:5] == [0, 1, 2, 3, 4]  # a worker that dies early tells its very step
    assert 6 <= len(given) <= 8
    assert given[-1] >= 900


def test_a_disk_error_in_the_pulse_is_swallowed(recording, monkeypatch):
    recording()

    def full(*args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(RankWriter, "pulse", full)
    RECORDER.pulse(1, now=True)


# ---------------------------------------------------------------------- forks


def in_a_child(work):
    """Run ``work`` in a forked child; returns what it returned, as JSON can say it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(10)  # a child that hangs on a lock fails the test, and does not hang it
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return json.loads(pipe.read() or "null")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_mute_and_the_parent_goes_on(recording):
    worker = recording()

    def child():
        RECORDER.forked()
        RECORDER.emit(Note("from the child"))
        RECORDER.attach(PLACE)
        return [RECORDER.mute, RECORDER.attached]

    assert in_a_child(child) == [True, False]
    RECORDER.emit(Note("from the parent"))
    assert texts(worker) == ["from the parent"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_another_thread_held_does_not_block_the_child(recording):
    recording()
    taken, done = threading.Event(), threading.Event()

    def hold():
        with RECORDER._lock:
            taken.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()

    def child():
        RECORDER.forked()
        RECORDER.emit(Note("x"))
        return True

    try:
        assert in_a_child(child)
    finally:
        done.set()
        thread.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("attached", "mute"), [(True, True), (False, False)])
def test_without_a_launcher_a_forked_child_may_be_a_rank(attached, mute, recording):
    recording(attach=attached, launcher="none")

    def child():
        RECORDER.forked()
        return RECORDER.mute

    assert in_a_child(child) is mute


# ---------------------------------------------------------------------- fail open


def test_an_error_of_ours_disarms_its_probe_alone_and_is_written_once(recording):
    worker = recording()
    calls = []

    @guarded("one")
    def breaks():
        calls.append("one")
        raise ZeroDivisionError("in the probe")

    @guarded("two")
    def works():
        return "fine"

    assert [breaks(), breaks(), works()] == [None, None, "fine"]
    assert calls == ["one"]
    (dark,) = worker.events(ProbeDark)
    assert dark.probe == "one"
    assert dark.reason.startswith("ZeroDivisionError: in the probe (test_recorder.py:")


@pytest.mark.parametrize("error", [AnomalyStop("stop"), KeyboardInterrupt(), SystemExit(3)])
def test_what_must_end_the_process_passes_the_guard(error, recording):
    worker = recording()

    @guarded("one")
    def stops():
        raise error

    with pytest.raises(type(error)):
        stops()
    assert worker.events(ProbeDark) == []


def test_a_guarded_function_rests_while_the_recorder_is_mute(recording):
    recording()
    RECORDER.mute = True
    assert guarded("one")(lambda: 1)() is None


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(30)


def test_what_a_thread_keeps_back_is_said_later_or_never_and_no_other_thread_waits_for_it(recording):
    worker = recording()
    done = []
    with RECORDER.holding() as left:
        RECORDER.emit(Note("left"))
        RECORDER.follows(lambda: done.append("left"))
        in_thread(lambda: (RECORDER.emit(Note("beside")), RECORDER.follows(lambda: done.append("beside"))))
        with RECORDER.holding() as kept:
            RECORDER.emit(Note("kept"))
            RECORDER.follows(lambda: done.append("kept"))
        RECORDER.emit(Note("left too"))
    assert (texts(worker), done) == (["beside"], ["beside"])
    RECORDER.say(kept)
    RECORDER.emit(Note("behind"))
    assert (texts(worker), done) == (["beside", "kept", "behind"], ["beside", "kept"])
    assert [event.text for event in left.events] == ["left", "left too"]


def test_threads_that_keep_back_at_once_do_not_mix(recording):
    """Who begins first ends first."""
    worker = recording()
    here, there, over = threading.Event(), threading.Event(), threading.Event()

    def beside():
        here.wait(30)
        with RECORDER.holding():
            there.set()
            over.wait(30)
            RECORDER.emit(Note("of a point that was left"))

    thread = threading.Thread(target=beside)
    thread.start()
    with RECORDER.holding():
        here.set()
        there.wait(30)
    over.set()
    thread.join(30)
    RECORDER.emit(Note("the origin"))
    assert texts(worker) == ["the origin"]


def test_that_a_probe_is_dark_is_said_whatever_is_kept_back(recording):
    worker = recording()
    with RECORDER.holding():
        RECORDER.dark("tape", ValueError("x"))
    assert [event.probe for event in worker.events(ProbeDark)] == ["tape"]

"""A rank that does not move says where it stands, by itself and by its stacks when a signal asks."""

import contextlib
import faulthandler
import inspect
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from nandiag.runtime.collectives import lookout, stacks, standing
from nandiag.runtime.collectives.lookout import Lookout
from nandiag.runtime.collectives.ring import RING, Call, Group, Ring
from nandiag.runtime.recorder import RECORDER
from nandiag.store.layout import standing_of
from nandiag.store.whereabouts import main_stack, read_standing


@pytest.fixture
def attached(recording, monkeypatch):
    """An attached recorder, and nothing that listens left behind."""
    recording()
    monkeypatch.setattr(stacks, "_state", {})
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    for name in ("enable", "disable", "is_enabled"):
        monkeypatch.setattr(faulthandler, name, getattr(faulthandler, name))
    yield RECORDER._writer.path
    for number in {signal.SIGTERM, stacks._state.get("signal") or signal.SIGTERM}:
        faulthandler.unregister(number)
    with contextlib.suppress(OSError, KeyError):
        os.close(stacks._state["file"])


def ask():
    os.kill(os.getpid(), stacks._state["signal"])


def test_a_signal_is_answered_with_the_stacks_and_python_sees_nothing_of_it(attached):
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    stacks.listen()
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before
    ask()
    text = RECORDER.stacks_file.read_text()
    told = {frame.function for frame in main_stack(text, ())}
    assert "ask" in told or "most recent call first" in text


def test_a_process_that_is_ended_in_c_leaves_its_stacks(attached):
    child = os.fork()
    if not child:
        faulthandler.disable()
        stacks.listen()
        os.abort()
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGABRT
    text = RECORDER.stacks_file.read_text()
    assert "Aborted" in text
    assert "test_a_process_that_is_ended_in_c_leaves_its_stacks" in {one.function for one in main_stack(text, ())}


def test_a_script_that_asks_for_its_faults_itself_keeps_them(attached, tmp_path):
    child = os.fork()
    if not child:
        with (tmp_path / "theirs").open("w") as theirs:
            faulthandler.enable(file=theirs)
            stacks.listen()
            os.abort()
    os.waitpid(child, 0)
    assert RECORDER.stacks_file.stat().st_size == 0
    assert "Aborted" in (tmp_path / "theirs").read_text()


def test_the_script_sees_nothing_of_our_handler_and_its_own_takes_its_place(attached, tmp_path):
    child = os.fork()
    if not child:
        faulthandler.disable()
        stacks.listen()
        seen = [faulthandler.is_enabled(), faulthandler.disable()]
        with (tmp_path / "theirs").open("w") as theirs:
            faulthandler.enable(file=theirs)
            os._exit((seen == [False, False] and faulthandler.is_enabled() and os.abort()) or 1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGABRT
    assert "Aborted" in (tmp_path / "theirs").read_text()
    assert RECORDER.stacks_file.stat().st_size == 0


def test_an_unasked_file_is_taken_away_and_an_answered_one_stays(attached):
    stacks.listen()
    stacks.leave()
    assert not RECORDER.stacks_file.exists()
    os.close(stacks._state["file"])
    stacks.listen()
    ask()
    stacks.leave()
    assert RECORDER.stacks_file.stat().st_size


def test_a_descriptor_that_became_the_scripts_own_file_is_never_written_to(attached, tmp_path):
    stacks.listen()
    number = stacks._state["file"]
    os.close(number)
    with (tmp_path / "theirs").open("w") as theirs:
        assert theirs.fileno() == number
        stacks._forked()
        stacks.listen()
        ask()
    assert (tmp_path / "theirs").read_text() == ""
    assert RECORDER.stacks_file.stat().st_size


def test_a_forked_child_writes_no_stacks_into_its_parents_file(attached):
    stacks.listen()
    child = os.fork()
    if not child:
        stacks._forked()
        ask()
        os._exit(0)
    os.waitpid(child, 0)
    assert RECORDER.stacks_file.stat().st_size == 0


def test_the_main_thread_is_the_last_of_the_newest_dump():
    text = """Thread 0x00007f01 (most recent call first):
  File "/lib/threading.py", line 1 in wait

Current thread 0x00007f02 (most recent call first):
  File "/u/a.py", line 3 in f
  File "/u/a.py", line 9 in <module>
Thread 0x00007f01 [pool] (most recent call first):
  File "/lib/threading.py", line 1 in wait

Current thread 0x00007f02 [main] (most recent call first):
  File "/lib/torch/x.py", line 7 in g
  File "/u/a.py", line 5 in f
  File "/u/a.py", line 9 in <module>
torn"""
    frames = main_stack(text, ("/lib/torch/", "/lib/"))
    assert [(frame.line, frame.function, frame.kind) for frame in frames] == [
        (7, "g", "torch"), (5, "f", "user"), (9, "<module>", "user"),
    ]  # fmt: skip
    assert main_stack("", ()) == ()


@pytest.fixture
def quick(monkeypatch, attached):
    """A lookout of short patience over a ring of its own."""
    monkeypatch.setattr(lookout, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lookout, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(standing, "RING", Ring())
    monkeypatch.setattr(RING, "on_new", None)
    one = Lookout()
    yield one, attached
    one.leave()
    time.sleep(0.05)


def until(true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_who_stands_still_says_where_with_the_line_and_no_thread_of_the_scripts(quick):
    one, path = quick
    before = threading.enumerate()
    standing.RING.begin(Call("barrier", None, None))
    one.start()
    until(standing_of(path).exists)
    told = read_standing(path)
    assert (told.why, told.calls[-1].op, told.calls[-1].state) == ("stalled", "barrier", "waits")
    waiting = next(frame for frame in told.stack if frame.function == "until")
    assert waiting.source.strip() in inspect.getsource(until)  # whichever of its lines ran at that moment
    assert threading.enumerate() == before


def test_who_goes_on_writes_nothing_until_it_leaves(quick):
    one, path = quick
    one.start()
    deadline = time.monotonic() + 0.4
    while time.monotonic() < deadline:
        RECORDER.beats += 1
        time.sleep(0.001)
    assert not standing_of(path).exists()
    one.leave()
    assert read_standing(path).why == "left"


def test_an_exception_is_told_before_the_exit_handlers_and_not_written_over(quick):
    one, path = quick
    one.start()
    one.raised()
    one.leave()
    assert read_standing(path).why == "raised"


def test_an_exception_is_told_with_the_frames_that_it_came_by(quick):
    one, path = quick
    one.start()
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2).sum().backward()
    one.raised(caught.value)
    stack = read_standing(path).stack
    assert stack[-1].function == "test_an_exception_is_told_with_the_frames_that_it_came_by"
    assert stack[0].file.endswith("torch/autograd/graph.py")


def test_an_exception_is_not_written_over_where_its_step_is_looked_at_for_long(quick):
    one, path = quick
    one.start()
    one.raised()
    time.sleep(0.4)
    assert read_standing(path).why == "raised"


@pytest.mark.parametrize("moved", [False, True])
def test_an_exception_tells_for_how_long_nothing_had_moved(quick, moved):
    one, path = quick
    one.start()
    until(standing_of(path).exists)
    RECORDER.beats += moved
    one.raised()
    told = read_standing(path)
    assert (told.why, told.still > 0.0) == ("raised", not moved)


def test_a_new_kind_of_call_is_written_as_it_begins_each_once(quick):
    one, path = quick
    one.start()
    ring = standing.RING
    ring.on_new = standing.write_new
    for size in (4, 4, 5, 4):
        call = Call("all_reduce", None, None)
        call.shapes, call.dtype = (torch.Size([size]),), torch.float32
        ring.begin(call)
    one.leave()
    standing_of(path).unlink()
    told = read_standing(path)
    assert told.why == "crashed"
    assert [call.shapes for call in told.calls] == [((4,),), ((5,),)]


def test_groups_that_were_destroyed_are_told_beside_those_that_are_there(quick):
    ring, members = standing.RING, (0, 2, 3)
    group = Group.__new__(Group)
    group.handle, group.name, group.life, group.description, group.members = None, "0", ring.life, "default_pg", members
    group.count, group.pairs = 4, {}
    ring.begin(Call("all_reduce", group, None))
    assert standing.standing("left").gone == ()
    ring.forget()
    ring.begin(Call("all_reduce", None, None))
    (told,) = standing.standing("left").gone
    assert (told.name, told.life, told.members) == ("0", ring.life - 1, ((0, 0), (2, 3)))


def test_no_process_group_is_needed_for_any_of_it(quick):
    assert not dist.is_initialized()
    assert standing.standing("stalled").groups == ()


def test_a_call_that_raised_is_told_before_its_exception_leaves_the_script():
    ring, told = Ring(), []
    ring.on_raised = lambda: told.append(ring.newest().state)
    for _ in range(20):
        ring.end(ring.begin(Call("barrier", None, None)), "done")
        ring.end(ring.begin(Call("barrier", None, None)), "raised", "RuntimeError: reset by peer")
    assert told == ["raised"] * 8  # a script may catch as many as it likes

"""The end of a run that stands still: asked first, then ended, and never while any worker goes on."""

import json
import os
import signal
import socket
from dataclasses import asdict

import pytest

from nandiag.events import Attached
from nandiag.events.standing import WAITS, CallFact, Standing
from nandiag.launch import hang
from nandiag.launch.hang import HangWatch, Workers, is_caught
from nandiag.store.layout import RunFolder, pulse_of, stacks_of, standing_of


class Run:
    def __init__(self, folder, timeout=30):
        self.folder = RunFolder.at(folder)
        self.folder.make()
        self.said, self.sent = [], []
        self.watch = HangWatch(self.folder, timeout, self.said.append)
        me = {"host": socket.gethostname(), "pid": os.getpid()}
        self.attached = {
            (rank, 0, 100 + rank): Attached(rank, 2, rank, 0, me["host"], me["pid"], "site", "3", "0")
            for rank in (0, 1)
        }
        self.listening = dict.fromkeys(self.attached, 61)
        for rank in (0, 1):
            self.moved(rank, 0)

    def moved(self, rank, moves, steps=1):
        path = self.folder.rank_file(rank, 0, 100 + rank)
        path.touch()
        pulse_of(path).write_text(json.dumps({"steps": steps, "time": 1.0, "moves": moves}))

    def stands(self, rank, moves, state):
        call = CallFact("all_reduce", "0", 0, state)
        told = Standing("stalled", 1.0, moves, 0, calls=(call,))
        standing_of(self.folder.rank_file(rank, 0, 100 + rank)).write_text(json.dumps(asdict(told)))

    def at(self, now):
        return self.watch.turn(
            now, Workers(self.attached, self.listening), lambda pid, number: self.sent.append(number)
        )


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(hang, "is_caught", lambda pid, number: True)
    return Run(tmp_path / "run")


def test_who_stands_still_is_asked_then_ended_then_killed(run):
    assert [run.at(now) for now in (0, 29)] == [None, None]
    assert run.sent == []
    run.at(30)
    assert run.sent == [61, 61]
    assert "no rank made progress for 30 s" in run.said[0]
    run.at(32)
    assert len(run.sent) == 2
    ended = run.at(33.5)
    assert (ended.ranks, ended.seconds, ended.attempt) == ((0, 1), 30, 0)
    assert run.sent[2:] == [signal.SIGTERM] * 2
    run.at(36)
    run.at(39)
    run.at(44)
    assert run.sent[4:] == [signal.SIGKILL] * 2


def test_what_ranks_answered_is_forgotten_once_they_went_on(run):
    stacks = stacks_of(run.folder.rank_file(1, 0, 101))
    run.at(0)
    run.at(30)
    stacks.write_text("where it was while it imported\n", encoding="utf-8")
    run.at(31)
    assert stacks.stat().st_size > 0
    run.moved(1, 7)
    assert run.at(32) is None
    assert stacks.stat().st_size == 0


def test_what_a_rank_answered_is_kept_as_long_as_it_stands_there(run):
    stacks = [stacks_of(run.folder.rank_file(rank, 0, 100 + rank)) for rank in (0, 1)]
    run.at(0)
    run.at(30)
    for one in stacks:
        one.write_text("where it was\n", encoding="utf-8")
    run.moved(1, 7)
    run.at(31)
    assert [one.stat().st_size > 0 for one in stacks] == [True, False]
    run.moved(0, 7)
    run.at(32)
    assert stacks[0].stat().st_size == 0


def test_what_ranks_say_as_they_are_ended_is_kept_though_they_write_more(run):
    stacks = stacks_of(run.folder.rank_file(1, 0, 101))
    for now in (0, 30, 34):
        run.at(now)
    stacks.write_text("where it was\n", encoding="utf-8")
    run.moved(1, 7)
    run.at(35)
    assert stacks.stat().st_size > 0


def test_one_rank_that_goes_on_keeps_the_run(run):
    for now in range(0, 300, 10):
        run.moved(1, now)
        assert run.at(now) is None
    assert run.said == []


def test_a_rank_that_goes_on_after_it_was_asked_is_not_ended(run):
    run.at(0)
    run.at(31)
    run.moved(0, 7)
    assert [run.at(now) for now in (35, 40, 60)] == [None] * 3
    assert signal.SIGTERM not in run.sent


def test_while_torch_is_imported_the_time_is_longer(run):
    run.listening.clear()
    run.at(0)
    run.at(100)
    assert run.said == []
    run.at(121)
    assert "no rank made progress" in run.said[0]


def at_the_start(run, moves=4):
    for rank in (0, 1):
        run.moved(rank, moves, steps=0)
    run.at(0)


def test_before_the_first_step_has_ended_the_time_is_longer(run):
    at_the_start(run)
    run.stands(0, 4, WAITS)  # for rank 1, which loads a model
    run.at(100)
    assert run.said == []
    run.at(121)
    assert "no rank made progress for 120 s" in run.said[0]
    assert run.at(125).seconds == 120


def test_one_rank_that_ended_a_step_has_started(run):
    at_the_start(run)
    run.moved(1, 5)
    run.at(1)
    run.at(31)
    assert "no rank made progress for 30 s" in run.said[0]


def test_a_script_without_steps_has_started_after_many_moves(run):
    at_the_start(run, moves=hang.FEW_MOVES + 1)
    run.at(31)
    assert run.said


def test_ranks_that_all_wait_for_each_other_do_not_start_any_more(run):
    at_the_start(run)
    for rank in (0, 1):
        run.stands(rank, 4, WAITS)
    run.at(31)
    assert "no rank made progress for 30 s" in run.said[0]


def test_a_word_of_before_the_last_move_is_no_waiting(run):
    at_the_start(run)
    run.stands(0, 4, WAITS)
    run.stands(1, 3, WAITS)
    run.at(31)
    assert run.said == []


def test_a_node_that_has_not_come_yet_may_be_starting(run):
    at_the_start(run)
    run.stands(0, 4, WAITS)
    run.attached.popitem()
    run.at(1)  # one less is a change, too
    run.at(32)
    assert run.said == []


def test_no_time_out_and_no_workers_are_never_looked_at(run, tmp_path):
    off = Run(tmp_path / "off", timeout=0)
    assert [off.at(now) for now in (0, 10_000)] == [None, None]
    run.attached.clear()
    assert [run.at(now) for now in (0, 10_000)] == [None, None]


def test_processes_that_have_ended_or_run_elsewhere_are_left_alone(run):
    gone = {key: Attached(key[0], 2, key[0], 0, "another-host", os.getpid(), "site", "3", "0") for key in run.attached}
    run.attached = gone
    for now in (0, 40, 50):
        run.at(now)
    assert run.sent == []


def test_a_signal_without_a_handler_is_never_sent():
    free = signal.SIGRTMAX - 1
    assert not is_caught(os.getpid(), free)
    before = signal.signal(free, lambda *_: None)
    assert is_caught(os.getpid(), free)
    signal.signal(free, before)
    assert not is_caught(2**22 + 1, free)

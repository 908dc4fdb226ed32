"""A handler of the script's that raises while nandiag is at work is heard by the script, wherever that was."""

import ctypes
import signal

import pytest

from nandiag.events import ProbeDark
from nandiag.runtime.births.prelude import Prelude
from nandiag.runtime.births.record import Record
from nandiag.runtime.look.losses import Losses
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.loop.window import Window
from nandiag.runtime.together import agreement
from nandiag.runtime.together.agreement import Agreement
from nandiag.runtime.watch.judge import Judge
from tests.faults.acting import train

# What runs in the midst of each probe that has a guard of its own.
PLACES = [
    (Window, "_kept"),
    (Window, "_take"),
    (Tape, "add"),
    (Tape, "made"),
    (Capture, "_takes_this_thread"),
    (Losses, "take"),
    (Judge, "begin"),
    (Prelude, "_record"),
    (Record, "keep_bad"),
]


class PreemptedError(Exception):
    """What the script's handler raises to get out of its loop."""


@pytest.fixture
def handler():
    """Answer SIGUSR1 by an error; yields what sends it, as the system does."""

    def preempt(*_):
        raise PreemptedError

    before = signal.signal(signal.SIGUSR1, preempt)
    yield lambda: ctypes.CDLL(None)["raise"](int(signal.SIGUSR1))
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda one: getattr(one, "__name__", one))
def test_what_a_handler_raises_in_our_work_reaches_the_script(owner, name, work, handler, monkeypatch):
    worker, original, calls = work(), getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            handler()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(PreemptedError):
        train(lambda: None)
    assert worker.events(ProbeDark) == []
    train(lambda: None)  # the script goes on
    assert [one.outcome for one in worker.looked] == ["found"]


def test_what_a_handler_raises_while_ranks_agree_reaches_the_script(handler, monkeypatch, recording):
    recording()
    one = Agreement()
    monkeypatch.setattr(agreement, "own_store", lambda _: handler())
    monkeypatch.setattr(agreement, "has_peers", lambda: True)
    with pytest.raises(PreemptedError):
        one.joins(wanted=True)

"""The engine's own threads, as it has them for a device: here a thread that nobody knows, within a backward."""

import _thread
import sys
import threading

import pytest
import torch
from torch import nn

from nandiag.runtime.frames import stack
from nandiag.runtime.kernels.engine import is_of_engine


@pytest.fixture
def engine(monkeypatch):
    """Return what a function returns that the engine calls in a thread of its own."""

    def call(function):
        found, done = [], threading.Event()

        def run():
            monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 7)
            try:
                found.append(function())
            finally:
                monkeypatch.undo()
                done.set()

        _thread.start_new_thread(run, ())
        assert done.wait(20)
        return found[0]

    return call


def hook():
    return stack(sys._getframe(), 1), is_of_engine()


def test_what_the_engine_calls_is_within_a_backward(engine):
    (frames, _), of_engine = hook()
    assert not of_engine
    (frames, in_engine), of_engine = engine(lambda: (stack(sys._getframe(), 8), is_of_engine()))
    assert in_engine
    assert of_engine
    assert frames


def test_a_thread_of_the_scripts_own_is_none_of_the_engines(monkeypatch):
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 7)
    found = []
    thread = threading.Thread(target=lambda: found.append(is_of_engine()))
    thread.start()
    thread.join(20)
    assert found == [False]


def test_the_engine_does_the_work_of_the_thread_that_is_taped(work, engine):
    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = []
    thread = threading.Thread(target=lambda: found.append(worker.capture.elsewhere))
    thread.start()
    thread.join(20)
    assert found == [True]
    assert engine(lambda: worker.capture.elsewhere) is False

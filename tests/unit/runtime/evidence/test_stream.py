"""A stream is run through again in a process of its own: the line in it is named only where the same values come."""

import os
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from nandiag.events import Looked, ProbeDark

BAD = 9


def logarithm(number):
    return torch.log(torch.full((4,), float(number)))  # the line


def numpys(number):
    return np.log(np.full(4, number, dtype=np.float32))  # the line


def drawn(number):
    return torch.rand(4) / float(number)  # the line


class Stream(IterableDataset):
    def __init__(self, make, marks):
        self.make, self.marks = make, marks

    def __iter__(self):
        info = get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, 24, stride):
            with self.marks.open("a") as file:
                file.write("x")
            yield self.make(0 if index == BAD else 1 + index)


def train(stream, workers):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(stream, batch_size=2, num_workers=workers):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def looked(worker):
    assert worker.events(ProbeDark) == []
    return next(look for look in worker.events(Looked) if look.outcome == "found")


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("make", "workers"), [(logarithm, 2), (numpys, 2), (drawn, 2), (logarithm, 0)],
    ids=["torch", "numpy", "random", "in_the_process"],
)  # fmt: skip
def test_the_line_in_the_stream_is_named(work, tmp_path, make, workers):
    worker = work()
    train(Stream(make, tmp_path / "marks"), workers)
    look = looked(worker)
    assert (look.phase, look.source, look.site.function) == ("data", "op", make.__name__)
    assert look.facts["dataset"] == "Stream"


def test_the_line_is_named_where_every_op_is_watched(work, tmp_path):
    worker = work(level="op")
    train(Stream(logarithm, tmp_path / "marks"), 2)
    look = looked(worker)
    assert (look.method, look.phase, look.site.function) == ("watch", "data", "logarithm")


def test_what_comes_out_otherwise_is_not_believed(work, tmp_path):
    def other(number):
        return torch.full((4,), 0.5 + time.perf_counter() % 0.1) / number

    worker = work()
    train(Stream(other, tmp_path / "marks"), 2)
    look = looked(worker)
    assert (look.source, look.facts["dataset"]) == ("input", "Stream")


def test_a_stream_that_takes_too_long_is_left(work, tmp_path, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.evidence.data.samples.stream._PATIENCE", 0.05)
    parent = os.getpid()

    def slow(number):
        time.sleep(0.0 if os.getpid() == parent else 0.05)
        return logarithm(number)

    worker = work()
    train(Stream(slow, tmp_path / "marks"), 0)
    assert looked(worker).source == "input"


def test_running_through_it_again_writes_nothing(work, tmp_path):
    worker = work()
    marks = tmp_path / "marks"
    train(Stream(logarithm, marks), 0)
    assert looked(worker).source == "op"
    assert marks.read_text() == "x" * 24


def test_a_warning_that_was_shown_once_is_not_shown_again_behind_it(work, tmp_path):
    """Python forgets what it has shown where the filters are set otherwise by its own functions."""

    def warns(number):
        warnings.warn("slow path", UserWarning, stacklevel=1)
        return logarithm(number)

    worker = work()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        train(Stream(warns, tmp_path / "marks"), 0)
    assert looked(worker).source == "op"
    assert [str(one.message) for one in shown].count("slow path") == 1

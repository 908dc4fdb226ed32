"""A run of a week: after a million steps the worker has grown by less than 5 MB, and its files by less than 50 MB."""

import gc
import os
from pathlib import Path

import pytest
import torch

from nandiag.events import Finished
from nandiag.runtime.recorder import RECORDER


class Steps:
    """Optimizer steps as torch makes them, hooks and all, with an update that does nothing."""

    def __init__(self):
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.0)

    def make(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            (self.weight * 2).sum().backward()
            self.optimizer.step()


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grown(worker, warm, count):
    steps = Steps()
    steps.make(warm)
    before = resident()
    steps.make(count)
    after = resident()
    told = worker.sentinel.finish()
    assert told == Finished(steps=warm + count, skips=0, last_finite_step=warm + count - 1, updates=(warm + count,))
    RECORDER.emit(told)
    files = sum(path.stat().st_size for path in worker.folder.path.rglob("*") if path.is_file())
    return after - before, files


def test_a_few_thousand_steps_leave_no_trace_of_each(work):
    memory, files = grown(work(), 600, 1_200)
    assert memory < 3 * 1024 * 1024
    assert files < 200_000


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_steps(work):
    memory, files = grown(work(), 5_000, 1_000_000)
    assert memory < 5 * 1024 * 1024
    assert files < 50 * 1024 * 1024

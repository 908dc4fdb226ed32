"""Kernels that stand in for what only a device has."""

import numpy as np
import pytest
import torch
from torch.library import Library


@pytest.fixture
def stand_in():
    """Puts functions in the place of torch's own kernels for the CPU: ``stand_in("_ctc_loss.Tensor", kernel)``."""
    library = Library("aten", "IMPL")
    yield lambda name, kernel: library.impl(name, kernel, "CPU", with_keyset=False)
    library._destroy()


class Graph(torch.cuda.CUDAGraph):
    """Stands in for a captured graph: what its replay does is seen by no mode, and moves no version."""

    def __new__(cls, *_):
        return object.__new__(cls)

    def __init__(self, work):
        self._tracker, self.work = None, work


@np.errstate(all="ignore")
def _replay(self):
    self.work()


@pytest.fixture
def graph(monkeypatch):
    """Makes a graph of a function: ``graph(work).replay()`` calls it, as far as torch is concerned on a device."""
    if torch.version.cuda is not None:
        pytest.skip("a torch that was built for CUDA has graphs that nothing can stand in for")
    backend = torch._C._CUDAGraph
    monkeypatch.setattr(backend, "replay", _replay, raising=False)
    monkeypatch.setattr(backend, "capture_begin", lambda self, **_: None, raising=False)
    monkeypatch.setattr(backend, "capture_end", lambda self: None, raising=False)
    return Graph

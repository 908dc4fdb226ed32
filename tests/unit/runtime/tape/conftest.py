"""An armed worker whose window is open."""

import pytest
import torch
from torch import nn

from nandiag.runtime.tape.noted import pace
from tests.unit.runtime.tape.opening import depth


@pytest.fixture
def model():
    return nn.Linear(3, 3)


@pytest.fixture
def opened(work, model):
    """An armed worker whose window is open: a root module has run."""
    worker = work()
    worker.capture.training()
    worker.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker.output = model(torch.ones(2, 3))
    assert worker.capture.window.on
    assert depth() == 1
    return worker


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.fixture
def short(monkeypatch):
    """Make all steps count as short, or none of them."""

    def make(*, yes=True):
        monkeypatch.setattr(pace, "_SHORT", 1e9 if yes else 0.0)

    make()
    return make

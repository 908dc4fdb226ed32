"""What numpy writes into the memory of gradients nobody runs again: its complaint is told, and no device blamed."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.numeric.warned import HEARD

BAD = 2


@pytest.fixture(autouse=True)
def nothing_heard():
    HEARD.clear()
    yield
    HEARD.clear()


def train(work, spoil):
    worker = work()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.rand(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for one in model.parameters():
                spoil(one.grad.numpy(), 0.0 if step == BAD else 1.0)
        optimizer.step()
    return worker.looked[0]


def by_norm(gradient, scale):
    gradient *= scale
    gradient /= np.linalg.norm(gradient)


def by_root(gradient, scale):
    np.sqrt(gradient - (0.0 if scale else 1e9), out=gradient) if not scale else None


@pytest.mark.parametrize(("spoil", "line"), [(by_norm, 2), (by_root, 1)])
def test_the_line_that_numpy_complained_of(work, spoil, line):
    found = train(work, spoil)
    assert (found.outcome, found.step, found.phase) == ("found", BAD, "optimizer")
    assert found.facts["heard"] is True
    assert found.site.line == spoil.__code__.co_firstlineno + line


def test_what_numpy_wrote_without_a_word_is_no_fault_that_did_not_show_again(work):
    def spoil(gradient, scale):
        gradient[0] = gradient[0] if scale else np.nan

    found = train(work, spoil)
    assert (found.outcome, found.facts["complete"]) == ("finite", False)
    assert "numpy" in found.reason


def test_numpy_that_only_reads_them_is_not_blamed(work):
    worker = work()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.rand(3, 4)).square().mean()
        loss = (loss - loss.detach()).log() if step == BAD else loss
        optimizer.zero_grad()
        loss.backward()
        with np.errstate(all="ignore"):
            np.log(model.weight.grad.numpy() * 0.0)
        optimizer.step()
    found = worker.looked[0]
    assert found.site.op.startswith("aten.log")

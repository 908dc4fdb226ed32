"""At --level op: memory that a line was handed unwritten, and that is used where nothing was written."""

import math

import pytest
import torch
from torch import nn


def fill(out, rows):
    out[: len(rows)] = rows


def scatter(out, rows):
    out.index_copy_(0, torch.arange(len(rows)), rows)


def train(made, *, wait=0, bad=None, steps=4):
    """A buffer is handed out in step 1, and used ``wait`` steps later; what lay there before is ``bad``."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    out = torch.zeros(64, 4)
    for step in range(steps):
        if step == 1:
            left = torch.full((64, 4), bad if bad is not None else 1.0)
            del left
            out = made(torch.randn(9, 4))
        rows = out if step >= 1 + wait else torch.randn(9, 4)
        layer(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def filled(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("write", [fill, scatter, lambda out, rows: None])
@pytest.mark.parametrize("wait", [0, 1])
@pytest.mark.usefixtures("filled")
def test_the_line_that_was_handed_it_is_told_with_its_step(work, write, wait):
    def made(rows):
        out = torch.empty(64, 4)
        write(out, rows)
        return out

    worker = work(level="op")
    train(made, wait=wait)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.empty.memory_format"), looked
    assert looked.site.source.strip() == "out = torch.empty(64, 4)"
    assert looked.facts.get("made_at_step", 1) == 1
    assert looked.step == 1 + wait


@pytest.mark.usefixtures("filled")
def test_what_was_written_bad_has_the_line_of_that(work):
    def made(rows):
        out = torch.empty(64, 4)
        fill(out, rows)
        out[len(rows) :] = torch.zeros(4) / torch.zeros(4)
        return out

    worker = work(level="op")
    train(made)
    assert worker.looked[0].site.op == "aten.div.Tensor"


@pytest.mark.parametrize("write", [lambda out: out.zero_(), lambda out: out.copy_(torch.ones(64, 4)), nn.init.normal_])
@pytest.mark.usefixtures("filled")
def test_what_was_filled_and_spoiled_unseen_is_no_unwritten_memory(work, write):
    def made(rows):
        out = torch.empty(64, 4)
        write(out)
        fill(out, rows)
        out.numpy()[20] = math.nan
        return out

    worker = work(level="op")
    train(made)
    assert worker.looked[0].source != "op", worker.looked[0]

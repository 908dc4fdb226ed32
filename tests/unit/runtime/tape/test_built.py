"""Modules that are built in the loop, behind the first step, and weights that are written again there."""

import math

import pytest
import torch
from torch import Tensor, nn

from nandiag.runtime.tape.entries import MOST_BYTES, Tape
from nandiag.runtime.tape.entry import CALL, Entry
from nandiag.runtime.tape.state import modes


@pytest.fixture
def filled(monkeypatch):
    """Torch fills with NaN what it hands out: else it would be chance what lies there."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Bare(nn.Linear):
    def reset_parameters(self):
        pass


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).log().mean()


def stepped(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(midway, steps=5, at=3):
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.randn(3, 4)
    for step in range(steps):
        loss = layer(x).square().mean()
        if step == at:
            loss = loss + midway(layer, x)
        stepped(optimizer, loss)


def test_a_weight_that_nothing_fills_has_the_line_that_says_so(work, filled):
    worker = work()
    held = []

    def midway(_, x):
        held.append(Bare(4, 4))  # left empty
        return held[0](x).mean()

    train(midway)
    looked = worker.looked[0]
    assert looked.site.source.strip() == "held.append(Bare(4, 4))  # left empty"
    assert (looked.facts["birth"], looked.step) == ("unwritten", 3)


def test_a_module_that_is_built_in_the_step_is_run_again(work):
    worker = work()
    train(lambda _, x: Logarithm()(x))
    looked = worker.looked[0]
    assert (looked.site.op, looked.outcome, looked.step) == ("aten.log.default", "found", 3)
    assert looked.site.source.strip() == "return self.layer(x).log().mean()"


@pytest.mark.parametrize(("write", "source"), [
    (lambda layer: nn.init.constant_(layer.bias, math.nan), "parameter"),
    (lambda layer: nn.init.normal_(layer.bias, math.nan), "parameter"),
    (lambda layer: nn.init.zeros_(layer.bias).fill_(math.inf), "op"),
], ids=["constant", "normal", "fill"])  # fmt: skip
def test_what_is_laid_into_a_new_weight_is_found(work, write, source):
    worker = work()

    def midway(_, x):
        layer = nn.Linear(4, 4)
        with torch.no_grad():
            write(layer)
        return layer(x).mean()

    train(midway)
    assert (worker.looked[0].step, worker.looked[0].source) == (3, source)


def test_a_live_module_that_is_reset_before_its_step_is_replayed_as_it_is_then(work):
    worker = work()
    model = Logarithm()
    with torch.no_grad():
        model.layer.weight.zero_()
        model.layer.bias.fill_(5.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(5):
        if step == 3:
            model.layer.reset_parameters()
        stepped(optimizer, model(torch.ones(3, 4)))
    looked = worker.looked[0]
    assert (looked.step, looked.site.op, looked.outcome) == (3, "aten.log.default", "found")


def test_memory_of_a_weight_that_is_being_built_is_not_taped(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.tape.noted.pace._SHORT", 0.0)  # else a fast machine only notes the call
    worker = work()
    tape = worker.capture.tape
    names = []

    def midway(*_):
        before = len(tape.loose)
        nn.Linear(4, 4)
        names.extend(one.name for one in list(tape.loose)[before:])
        torch.empty(3)
        names.append(tape.loose[-1].name)
        return 0.0

    train(midway)
    assert names == ["empty"]


def test_many_writes_into_one_weight_do_not_cost_more_each(work, monkeypatch):
    work()
    asked = []
    makers = Entry.makers.fget
    monkeypatch.setattr(Entry, "makers", property(lambda self: asked.append(1) or makers(self)))

    def midway(layer, _):
        for _ in range(100):
            nn.init.zeros_(layer.bias)
        return 0.0

    train(midway)
    assert len(asked) < 1000


def test_what_was_let_go_of_is_held_again_for_a_later_write_into_a_weight():
    """Where micro-batches are large only what the script itself has is kept: what was gone through before is anew."""
    tape, weight, moved, shift = Tape(), nn.Parameter(torch.ones(4)), torch.zeros(4), torch.ones(4)

    def taped(*words):
        entry = Entry(CALL, Tensor.add_, grad=False, modes=modes())
        entry.in_place = True
        tape.add(entry, words, {})
        tape.made(entry, words[:1])
        tape.hold_update(entry, words)
        return entry

    first = taped(moved, shift)
    taped(weight, moved)
    tape.bytes = MOST_BYTES + 1
    tape.bound()
    taped(weight, moved)
    del shift
    assert first.words[1].get() is not None

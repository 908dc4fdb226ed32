"""A loss that goes through time makes very many small calls, which are noted: the tape is what it would have been."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.runtime.look.finite import quiet
from nandiag.runtime.tape.noted import jots, pace

TIMES = 60


class Filter:
    """A recursion over time on weights of its own; exchanges and clips its gradients by hand, on one rank."""

    def __init__(self, *, model=False):
        torch.manual_seed(0)
        self.a, self.q = (torch.full((1,), value, requires_grad=True) for value in (0.9, 0.1))
        self.model = nn.Linear(4, 4) if model else None
        weights = [self.a, self.q, *(self.model.parameters() if model else ())]
        self.optimizer = torch.optim.SGD(weights, lr=1e-4)
        self.x, self.by_hand, self.goes_on, self.scale = torch.randn(TIMES), True, False, 1.0

    def loss(self):
        mean, total = torch.zeros(1), torch.zeros(1)
        shift = self.model(torch.ones(4)).sum() if self.model is not None else torch.zeros(1)
        for time in range(TIMES):
            mean = self.a * mean + self.q * (self.x[time] + shift)
            total = total + mean.square()
        if self.goes_on:
            mean = self.a * mean  # of the last one nothing comes
        return total.sum() / self.scale

    def backward(self):
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        if self.by_hand:
            for one in (self.a, self.q):
                one.grad /= 2
                one.grad = one.grad.clamp(-1.0, 1.0)
        return loss

    def step(self):
        loss = self.backward()
        self.optimizer.step()
        return loss.item()


@pytest.fixture(autouse=True)
def long(monkeypatch):
    """However fast the machine is, no step counts as a short one."""
    monkeypatch.setattr(pace, "_SHORT", 0.0)


@pytest.fixture
def sparse(monkeypatch):
    """Make no number of calls count as very many."""
    return lambda: monkeypatch.setattr(pace, "_MANY", math.inf)


def told(capture):
    """All that a reader of the tape may ask of its entries, as plain values."""
    entries = sorted([*capture.tape.entries, *capture.tape.loose], key=lambda one: one.number)
    return [
        (
            entry.kind, entry.name, entry.grad, entry.in_place, entry.micro_step,
            [(frame.code, frame.line, frame.instruction) for frame in entry.frames],
            [(type(word), word.version, getattr(word, "written", None)) for word in entry.words],
            [maker.name for maker in entry.makers], len(entry.args),
        )
        for entry in entries
    ]  # fmt: skip


@pytest.mark.parametrize("model", [False, True])
def test_the_tape_is_the_same_when_it_is_asked_for(work, sparse, model):
    capture, seen = work().capture, []
    for number in range(2):
        loop = Filter(model=model)
        for _ in range(5):
            loop.step()
        held = loop.backward()
        noted = capture.tape.jots.many or capture.tape.jots.shelves
        assert bool(noted) is (number == 0)
        seen.append(told(capture))
        del held
        loop.optimizer.step()
        sparse()
    assert len(seen[0]) > 5 * TIMES
    for row, other in zip(*seen, strict=True):
        assert row == other


def test_an_optimizer_for_each_weight_makes_the_loop_none_of_few_calls(work):
    capture, loop = work().capture, Filter()
    optimizers = [torch.optim.SGD([one], lr=1e-4) for one in (loop.a, loop.q)]
    for _ in range(5):
        loop.backward()
        for one in optimizers:
            one.step()
    assert capture.tape.jots.dense


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_step_that_ends_well_is_never_packed(work, monkeypatch, by_hand):
    capture, loop = work().capture, Filter()
    loop.by_hand, loop.goes_on = by_hand, not by_hand
    for _ in range(5):
        loop.step()
    put, original = [], jots.put
    monkeypatch.setattr(jots, "put", lambda tape, note: put.append(note) or original(tape, note))
    for _ in range(3):
        loop.step()
    assert not capture.tape.jots.every
    assert capture.tape.jots.dense
    assert len(put) <= (3 * 2 if by_hand else 0)  # what is made of each gradient


def test_what_is_written_into_was_used_with_the_value_that_it_had_before(work):
    capture, loop = work().capture, Filter()
    for _ in range(5):
        loop.step()
    held = loop.loss()
    before = loop.x._version
    assert capture.tape.jots.many
    loop.x.add_(1.0)
    assert not capture.tape.jots.every
    first = next(entry for entry in capture.tape.entries + list(capture.tape.loose) if entry.name == "__getitem__")
    assert first.words[0].version == before
    del held


def test_a_graph_that_the_script_holds_stays_on_the_tape(work):
    capture, loop = work().capture, Filter()
    for _ in range(5):
        loop.step()
    kept = (loop.a * 3.0) + loop.q
    loop.step()
    assert [entry.name for entry in capture.tape.whole([kept])] == ["mul", "add"]


def test_what_is_large_is_not_held_in_a_long_step(work):
    capture, loop = work().capture, Filter()
    for _ in range(5):
        loop.step()
    large = torch.ones(jots.LARGEST // 2) * loop.a
    reference = weakref.ref(large)
    del large
    gc.collect()
    assert reference() is None
    assert capture.tape.jots.dense


@pytest.mark.parametrize("model", [False, True])
def test_no_graph_of_an_evaluation_is_held_by_its_loss(work, model):
    """Gradients were left on: what each batch computed would live on by a number."""
    work()
    loop = Filter(model=model)
    for _ in range(5):
        loop.step()
    large, graphs = torch.ones(jots.LARGEST), []
    net = nn.Linear(jots.LARGEST, 4) if model else None
    for _ in range(6):
        out = (large * loop.a).square() if net is None else net(large)
        graphs.append(weakref.ref(out))
        loss = out.mean()
        for _ in range(5):
            loss = loss * 0.5 + loop.q
        del out, loss
    gc.collect()
    assert sum(one() is not None for one in graphs) <= 1


def test_where_what_is_noted_is_packed_in_each_step_it_is_not_noted_for_long(work):
    capture, loop = work().capture, Filter()
    loop.step()  # the first is not taped: no optimizer was there when it began
    for _ in range(pace._IN_VAIN + 6):
        loop.optimizer.zero_grad()
        loss = loop.loss()
        with quiet():
            assert len(capture.tape.entries) > TIMES  # somebody asks
        loss.backward()
        loop.optimizer.step()
    assert not capture.tape.jots.dense


def test_a_loop_without_modules_is_taped_whole_though_it_makes_many_calls(work):
    """Its loss is among them: left out, there would be nothing to run again."""
    worker, loop = work(on_anomaly="continue"), Filter()
    for _ in range(8):
        loop.step()
    assert not worker.capture.narrow
    loop.scale = loop.x.new_zeros(())
    loop.step()
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.div.Tensor"), looked
    assert looked.site.source.strip() == "return total.sum() / self.scale"

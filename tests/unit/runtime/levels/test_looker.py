"""Where a replay does not find the origin, ops are watched from the next step on, and the report is told."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nandiag.events import Looked, Note
from nandiag.runtime.levels import looker
from nandiag.runtime.replay.case import Case

EVERY = 3


class Turns:
    """State that a replay moves on, for no module holds it: what broke in the run does not break in its replay."""

    def __init__(self):
        self.count = 0

    def divisor(self):
        self.count += 1
        return torch.tensor(0.0 if self.count % EVERY == 0 else 1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.divisor = nn.Linear(4, 2), Turns().divisor

    def forward(self, x):
        return self.fc(x) / self.divisor()


def train(model, steps=8, turns=None, loss_of=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(3, 4)).square().mean()
        (out if loss_of is None else loss_of(out)).backward()
        optimizer.step()


def notes(worker):
    return [one.text for one in worker.events(Note)]


def test_the_next_harm_is_seen_as_it_happens(work):
    worker = work(on_anomaly="skip")
    train(Net())
    first, second = worker.looked[:2]
    assert (first.method, first.outcome, first.step) == ("replay", "finite", EVERY - 1)
    assert (second.method, second.outcome, second.site.op) == ("watch", "found", "aten.div.Tensor")
    assert second.step > first.step
    assert any("every op was watched" in text and f"step {first.step} had not shown" in text for text in notes(worker))


@pytest.mark.parametrize(("step", "most"), [(1e-3, 3.0), (2.0, 20.0)])
def test_what_may_be_told_to_nobody_takes_no_longer_than_a_replay_may(work, monkeypatch, step, most):
    worker, asked = work(), []
    looker = worker.sentinel.looker
    monkeypatch.setattr(looker.examiner, "examine_handed", asked.append)
    worker.capture.step_seconds = step
    looker.examine_handed(torch.ones(1))
    assert [one.seconds for one in asked] == [most]


def test_a_harm_that_goes_on_is_looked_at_once_more(work):
    """The same sort of harm is told once; the watch that has just begun must see it all the same."""
    worker = work(on_anomaly="auto")
    turns = Turns()
    turns.count = EVERY - 1
    model = nn.Linear(4, 2)

    def loss_of(out):
        turns.count += 1
        return out + (torch.log(torch.tensor(0.0)) if turns.count >= EVERY and turns.count != EVERY + 1 else 0)

    train(model, steps=4, loss_of=loss_of)
    assert {harm.what for harm in worker.harms} == {"loss"}
    assert worker.looked[-1].outcome == "found"


def test_a_replay_that_finds_it_needs_no_watch(work):
    worker = work(on_anomaly="skip")
    train(nn.Linear(4, 2), loss_of=lambda out: (out - out).log(), steps=2)
    assert not worker.sentinel.looker.live.started
    assert notes(worker) == []


def test_nor_does_a_run_without_replays(work):
    worker = work(on_anomaly="skip", max_replays=0)
    train(Net())
    assert not worker.sentinel.looker.live.started


def test_the_watch_ends_where_nothing_happens_again(work, monkeypatch):
    monkeypatch.setattr(looker, "MOST_STEPS", 2)
    worker = work(on_anomaly="skip")
    model = Net()
    train(model, steps=EVERY)
    assert worker.sentinel.looker.live.started
    model.divisor = lambda: torch.tensor(1.0)
    train(model, steps=6)
    assert not worker.sentinel.looker.live.started
    assert torch._C._len_torch_dispatch_stack() == 0
    assert worker.capture.window.on
    assert any("no longer watched" in text for text in notes(worker))


@pytest.mark.parametrize("level", ["step", "module"])
def test_the_training_is_the_same_to_the_bit(work, level):
    def trained():
        torch.manual_seed(5)
        model = Net()
        model.divisor = lambda: torch.tensor(1.0)
        train(model)
        return [one.tolist() for one in model.parameters()]

    plain = trained()
    worker = work(on_anomaly="continue", level=level)
    worker.sentinel.looker._missed = 0
    assert trained() == plain
    assert worker.sentinel.looker.live.started
    assert worker.harms == []


@pytest.mark.parametrize(("possible", "missed"), [(True, 4), (False, None)])
def test_ranks_watch_together_or_not_at_all(possible, missed):
    """Where the agreement broke off one rank would watch alone, within collectives of the others."""
    one = object.__new__(looker.Looker)
    one._missed = None
    one._capture = SimpleNamespace(elsewhere=False)
    one._agreement = SimpleNamespace(any=lambda flag, what: flag, possible=possible)
    one._may_take_over(Case(4, [], joint=True), Looked(outcome="refused", method="replay", step=4))
    assert one._missed == missed

"""What modules keep is looked into without harm: what is reached by two ways, locks, memory, time."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from nandiag.events import Looked
from nandiag.runtime.guard import AnomalyStop
from nandiag.runtime.memory.later import stored
from nandiag.runtime.tape.calls import contents, sides

BAD = 6


def train(model, loss_of, steps=9):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(AnomalyStop):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()


class Missing(nn.Module):
    """Keeps a recall that is 0/0 for a class that never comes, which does no harm; counts how often it is run."""

    def __init__(self):
        super().__init__()
        self.layer, self.kept, self.runs = nn.Linear(4, 3), {}, 0

    def forward(self, x):
        self.begins()
        out = self.layer(x)
        self.kept["recall"] = out.detach()[:0].sum(0) / 0.0
        return out

    def begins(self):
        self.runs += 1


class Locking(Missing):
    """Takes a lock, which the loop lets go of when backward is over."""

    def __init__(self):
        super().__init__()
        self.busy = threading.Lock()

    def begins(self):
        assert self.busy.acquire(blocking=False), "it is taken already"


def test_a_model_that_takes_a_lock_is_not_run_again_where_nothing_is_wrong(work):
    worker = work(on_anomaly="continue")

    def loss_of(model, _step):
        loss = model(torch.randn(5, 4)).square().mean()
        model.busy.release()
        return loss

    train(Locking(), loss_of)
    assert worker.events(Looked) == []


@pytest.mark.parametrize("longest", [0.0, 1e3])
def test_a_look_that_takes_too_long_is_broken_off_and_not_tried_again(work, monkeypatch, longest):
    monkeypatch.setattr(stored, "_LONGEST", longest)
    worker, outcomes = work(on_anomaly="continue"), []
    kept = worker.capture.births.stored
    examine = kept._examine
    monkeypatch.setattr(kept, "_examine", lambda *words: outcomes.append(examine(*words)) or outcomes[-1])
    train(Missing(), lambda model, _step: model(torch.randn(5, 4)).square().mean())
    assert [one.outcome for one in outcomes][:1] == (["found"] if longest else ["refused"])
    assert len(outcomes) == 1 or longest


class Writer(nn.Module):
    def __init__(self, bank):
        super().__init__()
        self.layer, self.bank = nn.Linear(4, 4), bank

    def forward(self, x):
        self.bank.append(x.detach().mean(0))
        del self.bank[:-3]
        return self.layer(x)


class Reader(nn.Module):
    """Divides by the distance of the two newest, which is 0 where a batch comes twice."""

    def __init__(self, bank):
        super().__init__()
        self.bank = bank

    def forward(self, x):
        if len(self.bank) < 2:
            return x
        return x / (self.bank[-1] - self.bank[-2]).norm()  # the line


@pytest.mark.parametrize("alias", [False, True])
def test_a_list_that_two_modules_share_is_one_in_a_replay_too(work, alias):
    worker, bank = work(on_anomaly="stop"), []
    model = nn.Sequential(Writer(bank), Reader(bank))
    if not alias:
        del bank
    batches = [torch.randn(5, 4) for _ in range(BAD)]
    train(model, lambda model, step: model(batches[min(step, BAD - 1)]).square().mean())
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert looked.site.source.endswith("# the line")
    # By a name in the loop too: what is written by that is not seen by the modules.
    assert looked.facts.get("reconstructed", False) is alias


class Nest(nn.Module):
    """Goes by which list is which."""

    def __init__(self):
        super().__init__()
        self.layer, self.one = nn.Linear(4, 1), []
        self.both = {"one": self.one, "again": [self.one]}
        self.both["self"] = self.both

    def forward(self, x):
        assert self.both["one"] is self.one
        assert self.both["again"][0] is self.one
        assert self.both["self"] is self.both
        self.one.append(x.detach().sum())
        del self.one[:-4]
        return self.layer(x)


def test_what_holds_one_thing_twice_does_so_in_a_replay(work):
    worker = work(on_anomaly="stop")
    train(Nest(), lambda model, step: torch.log(model(torch.ones(3, 4)).square().mean() * float(step < BAD)))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.log.default"), looked
    assert looked.facts.get("reconstructed", False) is False


class Rebinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.feats, self.alive = nn.Linear(8, 8), [], []

    def forward(self, x):
        before, self.feats = [weakref.ref(one) for one in self.feats], []
        gc.collect()
        self.alive.append(sum(one() is not None for one in before))
        for _ in range(3):
            x = torch.tanh(self.layer(x))
            self.feats.append(x)
        return x


def test_what_a_call_lets_go_of_is_gone_while_it_runs(work):
    """The activations of the step before would live through the next forward."""
    work()
    model = Rebinds()
    train(model, lambda model, _step: model(torch.randn(64, 8)).square().mean())
    assert model.alive[2:] == [0] * len(model.alive[2:])


class Full(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.queue = nn.Linear(4, 4), [torch.zeros(4) for _ in range(100)]

    def forward(self, x):
        out = self.layer(x)
        self.queue = [*self.queue[1:], out.detach().mean(0)]
        return out


def test_where_models_keep_very_much_a_call_does_not_look_at_all_of_it(work, monkeypatch):
    monkeypatch.setattr(contents, "_CREDIT", 0.0)
    monkeypatch.setattr(contents, "_SHARE", 0.0)
    worker, model = work(), nn.Sequential(*(Full() for _ in range(20)))
    train(model, lambda model, _step: model(torch.randn(5, 4)).square().mean())
    habit = next(one for one in worker.capture.known.values() if one.module() is model)
    looked_at = sum(100 for known in habit.sides._known.values() for _ in known)
    assert 0 < looked_at <= sides._MOST
    model(torch.randn(5, 4))
    assert worker.capture.tape.entries[-1].lost

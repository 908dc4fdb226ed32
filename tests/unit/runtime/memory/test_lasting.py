"""Bad values that the loop makes before the step they do harm in, and keeps as they are, have their line and step."""

import contextlib
from collections import deque

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop
from nandiag.runtime.memory.later import stored


@pytest.fixture(autouse=True)
def with_time_to_look(monkeypatch):
    """On a busy machine the first looks of all take more than what the first steps of a run may be kept for.

    So may one look, which is given some steps' time, and a replay for it is broken off where that is over.
    """
    for limit in ("_CREDIT_LASTING", "SHORT", "_LONGEST", "_LEAST"):
        monkeypatch.setattr(stored, limit, 60.0)


def scaled(a):
    a = a - a.mean()
    return a / a.norm()  # of one value


def rows(amount):
    return torch.rand(amount, 4)


class Ahead:
    """The batch of the next step is made while this one's is used."""

    def __init__(self, bad):
        self._bad = bad
        self._next = self.make(0)

    def make(self, step):
        return scaled(rows(1)[:, :1] if step == self._bad else rows(8)[:, :1])

    def take(self, step):
        batch, self._next = self._next, self.make(step + 1)
        return batch


class Epochs:
    """The batches of four steps are made in a list before the first of them."""

    def __init__(self, bad):
        self._bad = bad
        self._batches = deque()

    def take(self, step):
        if not self._batches:
            sizes = [1 if step + i == self._bad else 8 for i in range(4)]
            self._batches.extend([rows(8), scaled(rows(size)[:, :1])] for size in sizes)
        return self._batches.popleft()[1]


class Weights:
    """The weights of all samples are made at once, of which a step uses a few."""

    def __init__(self, bad):
        self._bad = bad

    def take(self, step):
        if step % 4 == 0:
            seen = torch.ones(32)
            seen[8 * (self._bad % 4)] = float(step != self._bad // 4 * 4)
            self._weights = torch.ones(32) / seen  # one was never seen
        return self._weights[8 * (step % 4) : 8 * (step % 4) + 8, None]


def train(source, steps=12):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = source.take(step)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(
    ("kind", "made", "comment"), [(Ahead, 6, "# of one value"), (Epochs, 4, "# of one value"), (Weights, 4, "seen")]
)
def test_what_was_made_before_its_step_has_its_line_and_step(work, kind, made, comment, short):
    worker = work(on_anomaly="stop")
    worker.capture.tape.jots.on = short
    with pytest.raises(SystemExit):
        train(kind(7))
    looked = worker.looked[0]
    assert (looked.site.op, looked.step, looked.facts.get("made_at_step")) == ("aten.div.Tensor", 7, made), looked
    assert looked.site.source.endswith(comment)


@pytest.mark.parametrize("short", [True, False])
def test_what_a_step_uses_up_or_lets_go_of_is_not_looked_at(work, short, monkeypatch):
    looked_at = []
    monkeypatch.setattr(stored, "norms", lambda made: looked_at.append([tuple(one.shape) for one in made]) or [])
    worker = work()
    worker.capture.tape.jots.on = short

    class Source:
        def take(self, step):
            batch = rows(8)  # goes into the model
            (batch * 2.0).sum().item()  # nobody holds this
            self.kept = batch[:5, 0] + step
            return batch[:, :1]

    train(Source(), steps=4)
    assert looked_at == [[(8, 4), (5,)]] * 3


class Holds:
    """Keeps what is infinite on purpose: a mask, the best so far, distances that are not known yet."""

    def take(self, step):
        del step
        self.mask = torch.zeros(4).masked_fill(torch.arange(4) > 1, float("-inf"))
        self.best = torch.full((), float("inf"))
        self.far = torch.full((4, 4), float("inf"))
        return rows(8)[:, :1]


def test_what_is_infinite_and_kept_is_no_harm(work):
    worker = work(on_anomaly="stop")
    train(Holds())
    assert worker.harms == worker.looked == []


class Queue:
    """What is bad goes on from step to step: each is made of the one before."""

    def __init__(self):
        self.mean = torch.ones(1)

    def take(self, step):
        self.mean = 0.5 * self.mean + 0.5 * scaled(rows(8)[:, :1] if step != 5 else rows(1)[:, :1]).mean()
        return rows(8)[:, :1] * (self.mean if step > 7 else 1.0)


def test_the_line_is_that_of_the_step_that_made_it_first(work):
    worker = work(on_anomaly="stop")
    with pytest.raises(SystemExit):
        train(Queue())
    looked = worker.looked[0]
    assert (looked.site.op, looked.step, looked.facts.get("made_at_step")) == ("aten.div.Tensor", 8, 5), looked


class MendedFirst:
    """What was bad is kept, and used when it is mended; what is made of it then goes bad at a line of its own."""

    def __init__(self, mend):
        self.mend, self.rates = mend, torch.ones(4)

    def take(self, step):
        if step == 3:
            self.kept = scaled(torch.ones(4))
        if step == 5:
            self.rates = 1.0 / (self.mend(self.kept) * 0.0)  # by nothing
        return rows(8)[:, :1] * (self.rates[0] if step == 8 else 1.0)


MENDS = {
    "nan_to_num": torch.nan_to_num,
    "where": lambda bad: torch.where(bad > 0.0, bad, 0.0),
    "masked_fill": lambda bad: bad.masked_fill((bad > 0.0).logical_not(), 0.0),
    "nansum": lambda bad: bad.nansum()[None],
    "isfinite": lambda bad: bad.isfinite().float(),
}


@pytest.mark.parametrize("mend", MENDS.values(), ids=MENDS)
def test_what_goes_bad_anew_behind_a_mend_has_its_own_line_and_step(work, mend):
    worker = work(on_anomaly="stop")
    with pytest.raises(SystemExit):
        train(MendedFirst(mend))
    looked = worker.looked[0]
    assert looked.site.source.endswith("# by nothing"), looked
    assert (looked.step, looked.facts.get("made_at_step")) == (8, 5)


class Prototypes:
    """The mean of each class, made anew of the batch of each step."""

    def __init__(self):
        self.means = {}

    @torch.no_grad()
    def update(self, z, y):
        for c in range(2):
            now = z[y == c].mean(0)  # of no sample
            old = self.means.get(c)
            self.means[c] = now if old is None else 0.9 * old + 0.1 * now

    def of(self, y):
        return torch.stack([self.means[int(c)] for c in y])


@pytest.mark.parametrize("behind", [False, True], ids=["before_the_update", "behind_it"])
def test_what_a_class_keeps_has_the_step_of_its_first_bad_mean(work, behind):
    """Steps 4 and 5 have no sample of the second class, of which the means are bad from the former on; 7 uses them."""
    worker = work(on_anomaly="stop")
    torch.manual_seed(0)
    model, known = nn.Linear(4, 2), Prototypes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(AnomalyStop):
        for step in range(10):
            y = torch.arange(6) % 2 * (step not in {4, 5, 6})
            z = model(torch.randn(6, 4))
            if not behind or not known.means:
                known.update(z, y)
            loss = (z - known.of(y)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if behind:
                known.update(z, y)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.mean.dim"), looked
    assert looked.site.source.endswith("# of no sample")
    # Behind the update of step 4 it is step 5 already.
    assert (looked.step, looked.facts["made_at_step"]) == (7, 5 if behind else 4)


def test_what_a_step_uses_that_the_one_before_it_left_behind_its_update_has_its_line(work):
    worker = work(on_anomaly="stop")
    model, known = nn.Linear(4, 2), Prototypes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(AnomalyStop):
        for step in range(6):
            z = model(torch.randn(6, 4))
            loss = z.square().mean() + (torch.stack(list(known.means.values())).sum() if known.means else 0.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            known.update(z, torch.arange(6) % 2 * (step != 3))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", 4), looked
    assert looked.site.source.endswith("# of no sample")


class Balanced:
    """Weights of classes by how often each was seen, made anew in some steps; no module."""

    def __init__(self):
        self.weight = torch.ones(3)

    def __call__(self, scores, labels, seen):
        if seen is not None:
            self.weight = seen.sum() / seen
        return nn.functional.cross_entropy(scores, labels, weight=self.weight)


@pytest.mark.parametrize("short", [True, False])
def test_weights_of_classes_that_do_no_harm_in_the_step_that_makes_them_have_its_line(work, short):
    worker = work()
    worker.capture.tape.jots.on = short
    model, weigh = nn.Linear(4, 3), Balanced()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        labels = torch.tensor([0, 1, 2 if step == 8 else 0])  # of the class that was never seen there is one sample
        loss = weigh(model(torch.ones(3, 4)), labels, torch.tensor([4.0, 2.0, 0.0]) if step == 5 else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = next(one for one in worker.looked if one.outcome == "found")
    assert looked.site.source.strip() == "self.weight = seen.sum() / seen", looked
    assert (looked.step, looked.facts["made_at_step"]) == (8, 5)

"""What modules keep from step to step beside weights: where it goes bad is told when harm comes of it, steps later."""

import contextlib
import math
from collections import OrderedDict, deque

import pytest
import torch
from torch import nn

from nandiag.runtime.guard import AnomalyStop
from nandiag.runtime.memory.later import stored
from tests.unit.runtime.replay import kept
from tests.unit.runtime.replay.kept import KINDS, ONCE_BY_KEY, Attribute, Buffer, Keyed, Net, OfClass

BAD, LAST = 8, 13


def train(kind, bad=BAD):
    torch.manual_seed(0)
    kept.SHARED.clear()
    OfClass.shared[0] = torch.ones(4)
    model = Net(kind())
    return model, run(model, lambda step: (torch.randn(1 if step == bad else 5, 4), step % 2))


def run(model, batch):
    """Train on what ``batch`` gives for each step, until nandiag stops it; returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with contextlib.suppress(AnomalyStop):
        for step in range(LAST):
            loss = model(*batch(step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not OfClass])
def test_what_is_kept_has_the_line_and_the_step_that_made_it_bad(work, kind):
    worker = work(on_anomaly="stop")
    train(kind)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.op) == ("found", "op", "aten.std.correction"), looked
    assert looked.site.source.endswith("# the line")
    used = BAD + (2 if kind in ONCE_BY_KEY else 1)  # the next batch of its key
    assert (looked.step, looked.facts["made_at_step"]) == (used, BAD)


@pytest.mark.filterwarnings("ignore:std")
def test_a_buffer_that_is_replaced_is_harm_at_once(work):
    worker = work(on_anomaly="stop")
    train(Buffer)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.step) == ("found", "op", BAD), looked
    assert looked.site.source.endswith("# the line")


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_as_if_nobody_had_looked(work, kind):
    plain, expected = train(kind)
    spreads = [plain.norm.spread(key) for key in range(2)]
    worker = work(on_anomaly="continue")
    model, losses = train(kind)
    assert worker.looked
    assert str(losses) == str(expected)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    for key, spread in enumerate(spreads):
        assert torch.allclose(spread, model.norm.spread(key), rtol=0.0, atol=0.0, equal_nan=True)


class Apart(nn.Module):
    """One of two statistics is for the log alone, and goes bad first, at a line of its own."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.steps, self.layer = kept, 0, nn.Linear(4, 1)
        self.kept |= {"log": torch.zeros(()), "std": torch.ones(4)}

    def forward(self, x, key):
        del key
        self.steps += 1
        y = x / (self.kept["std"] + 1e-3)
        with torch.no_grad():
            self.kept["log"] = self.kept["log"] + torch.log(torch.tensor(float(self.steps != 5))) * 0.0  # for the log
            self.kept["std"] = self.kept["std"].lerp(x.std(0), 0.1)  # the line
        return self.layer(y)


@pytest.mark.filterwarnings("ignore:std")
def test_of_two_that_go_bad_the_one_that_harm_comes_of_is_told(work):
    worker = work(on_anomaly="stop")
    torch.manual_seed(0)
    run(Apart({}), lambda step: (torch.randn(1 if step == BAD else 5, 4), 0))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.endswith("# the line")
    assert (looked.step, looked.facts["made_at_step"]) == (BAD + 1, BAD)


class ByClass(nn.Module):
    """Means by class, of which one goes bad long before another, and only the other is used."""

    def __init__(self):
        super().__init__()
        self.layer, self.means = nn.Linear(4, 1), {key: torch.zeros(4) for key in range(3)}

    def forward(self, x, y, used):
        out = self.layer(x - self.means[used])
        with torch.no_grad():
            for key in range(3):
                self.means[key] = 0.9 * self.means[key] + 0.1 * x[y == key].mean(0)  # the line
        return out


def test_of_what_is_kept_by_class_the_step_of_the_one_that_is_used_is_told(work):
    """It is passed on for two steps before it is read."""
    worker = work(on_anomaly="stop")

    def batch(step):
        y = torch.tensor([0, 1, 2, 0, 1])
        y[y == {3: 2, BAD - 1: 0}.get(step, -1)] = 1
        return torch.randn(5, 4), y, 0 if step > BAD else 1

    run(ByClass(), batch)
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.endswith("# the line")
    assert (looked.step, looked.facts["made_at_step"]) == (BAD + 1, BAD - 1)


class Reset(nn.Module):
    """Passes on what it keeps, begins anew every four steps, and divides by it when told to."""

    def __init__(self):
        super().__init__()
        self.layer, self.size, self.steps = nn.Linear(4, 1), torch.ones(()), 0

    def forward(self, x, taken, divides):
        out = self.layer(x / self.size if divides else x)
        if self.steps % 4 == 0:
            self.size = torch.ones(())
        with torch.no_grad():
            self.size = 0.5 * self.size + x[:taken].abs().mean()  # the line
        self.steps += 1
        return out


@pytest.mark.parametrize("first", [1, 2])
def test_what_is_passed_on_is_looked_at_once_and_has_the_step_since_which_it_is_bad(work, monkeypatch, first):
    monkeypatch.setattr(stored, "_CREDIT_AGAIN", -math.inf)  # for no more than two looks
    worker = work(on_anomaly="stop")
    run(Reset(), lambda step: (torch.randn(5, 4), 0 if step in {first, 5} else 5, step == 7))
    looked = worker.looked[0]
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    assert looked.site.source.endswith("# the line")
    assert (looked.step, looked.facts["made_at_step"]) == (7, 5)


class Walked(nn.Module):
    """Fills a container that the loop goes through with an update for each item; some of it is bad on purpose."""

    def __init__(self, container):
        super().__init__()
        self.layer, self.feats, self.metric = nn.Linear(4, 1), container, None

    def forward(self, x):
        if isinstance(self.feats, dict):
            self.feats.update({len(self.feats): x[:0].mean(), "b": x.mean()})
        else:
            self.feats.extend([x[:0].mean(), x.mean()])
        self.metric = x[:0].mean()
        return self.layer(x)


@pytest.mark.parametrize("make", [list, dict, OrderedDict, deque, lambda: deque(maxlen=5)])
def test_what_the_loop_goes_through_is_not_touched(work, make):
    worker = work(on_anomaly="continue")
    model, torch_model = Walked(make()), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(torch_model.parameters(), lr=0.01)
    for step in range(6):
        model(torch.randn(3, 4)).sum().backward()
        feats, held, count = model.feats, list(model.feats), 0
        for _ in model.feats:
            optimizer.zero_grad()
            torch_model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            count += 1
        assert (count, model.feats is feats, list(feats)) == (len(held), True, held), step
    assert worker.harms == []


class Counted(Attribute):
    """Has an object of a library's count its calls."""

    def __init__(self):
        super().__init__()
        self.count = type("Count", (), {"__module__": "library_of_others", "calls": 0})()

    def update(self, x, key):
        self.count.calls += 1
        super().update(x, key)


@pytest.mark.filterwarnings("ignore:std")
def test_a_model_that_holds_what_a_library_made_is_not_run_again_where_the_run_goes_on(work):
    worker = work(on_anomaly="continue", max_replays=0)
    model, _ = train(Counted)
    assert model.norm.count.calls == LAST
    assert worker.looked == []


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.history = nn.Linear(4, 1), list(range(2000))

    def forward(self, x):
        self.history.append(float(len(self.history)))
        return self.layer(x)


def test_what_is_large_or_holds_no_tensor_is_not_looked_through(work):
    worker, model = work(), Net(Attribute())
    model.growing = Growing()
    model.forward = lambda x, key: model.layer(model.norm(x, key)) + model.growing(x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(5, 4), step % 2).square().mean().backward()
        optimizer.step()
    habit = next(one for one in worker.capture.known.values() if one.module() is model)
    names = {place.name for known in habit.sides._known.values() for place in known}
    assert "history" not in names


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_goes_bad_nothing_is_run_again(work, kind):
    worker = work(on_anomaly="stop")
    train(kind, bad=None)
    assert worker.looked == []
    assert worker.harms == []


class Fed(Keyed):
    """Keeps what it has seen in a closure, in its class, and in parts that are exchanged; all its keys are new."""

    shared = []  # noqa: RUF012 - as scripts have it

    def __init__(self):
        super().__init__()
        seen = []
        self.register_forward_hook(
            lambda _module, _words, output: seen.append(output.detach()) or seen.__delitem__(slice(-3))
        )
        self.part = Attribute()

    def update(self, x, key):
        self.part = Attribute()
        self.part(x, key)
        self.kept = {(key, len(self.shared)): torch.ones(4)}
        Fed.shared.append(x.mean())
        del Fed.shared[:-4]

    def spread(self, _key):
        return torch.ones(4)


def test_what_is_learnt_does_not_grow_with_the_steps(work):
    worker = work()
    model = Net(Fed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = []
    for step in range(400):
        optimizer.zero_grad()
        model(torch.randn(5, 4), step % 2).square().mean().backward()
        optimizer.step()
        if step in {150, 399}:
            habit = next(one for one in worker.capture.known.values() if one.module() is model)
            known = [*habit.sides._known.values(), *habit._contents._known.values()]
            sizes.append([*map(len, known), *(len(one.inner) for one in habit._known.values())])
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) < 12

"""Plain short steps have their borders looked at by few calls, and nothing that goes wrong in one is missed for it."""

import copy
import gc
import math
from collections import Counter

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark
from nandiag.runtime.early.data import inputs
from nandiag.runtime.steady import assured
from nandiag.runtime.steady.borders import Borders

# The first batches are all looked at.
WARM = 75


class Loop:
    """Trains a small model; ``change(loop)`` is called before the backward of each step from ``at`` on."""

    def __init__(self, kind=torch.optim.AdamW, **options):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = kind(self.model.parameters(), lr=1e-3, **options)
        self.x = torch.randn(8, 4)
        self.made = 0

    def __call__(self, count=1, before=lambda: None, between=lambda: None, factor=1.0):
        for _ in range(count):
            loss = self.model(self.x).square().mean() * factor
            self.optimizer.zero_grad()
            before()
            loss.backward()
            between()
            self.optimizer.step()
            self.made += 1


@pytest.fixture(params=["few", "many"])
def sizes(request, monkeypatch):
    if request.param == "many":  # more elements than are quickest looked at side by side
        monkeypatch.setattr(assured, "_FEW", 0)


@pytest.fixture(autouse=True)
def all_looks_are_dear(monkeypatch):
    monkeypatch.setattr(assured, "_SHARE", 0.0)
    monkeypatch.setattr(inputs, "_SHORT_STEP", math.inf)
    gc.collect()
    gc.freeze()  # buffers of modules that an earlier test left behind would be looked at


@pytest.fixture
def plainly(monkeypatch):
    """How many borders were looked at here, by ``begins`` and ``ended``."""
    counts = Counter()

    def counted(name, original):
        def wrapper(*args):
            answer = original(*args)
            counts[name] += answer
            return answer

        return wrapper

    for name in ("begins", "ended"):
        monkeypatch.setattr(Borders, name, counted(name, getattr(Borders, name)))
    return counts


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_most_steps_are_plain_and_tell_the_same(kind, work, plainly, sizes):
    worker = work()
    Loop(kind)(2 * WARM)
    assert plainly["begins"] == plainly["ended"] > 50
    assert worker.sentinel.clock.step == 2 * WARM
    assert worker.sentinel.judge.finite_after == 2 * WARM - 1
    assert not worker.harms
    history = worker.sentinel.teller.history.event()
    assert list(history.step) == list(range(2 * WARM))
    assert None not in (*history.loss, *history.grad_norm, *history.lr)
    assert worker.sentinel.losses.pending == []
    assert not worker.sentinel.nesting


def test_the_numbers_are_those_of_the_sentinel(work, plainly, monkeypatch):
    torch.manual_seed(1)
    worker = work()
    loop = Loop()
    norms = []

    def between():
        norms.append(math.sqrt(sum(float(one.grad.square().sum()) for one in loop.model.parameters())))

    loop(WARM, between=between)
    told = worker.sentinel.teller.history.event().grad_norm
    assert plainly["begins"]
    assert told == pytest.approx(norms, rel=1e-5)


def test_steps_of_which_the_gradients_are_clipped_are_plain(work, plainly):
    torch.manual_seed(1)
    worker = work()
    loop = Loop()
    norms = []

    def clipped():
        norms.append(float(nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-2)))

    loop(2 * WARM, between=clipped)
    history = worker.sentinel.teller.history.event()
    assert plainly["begins"] == plainly["ended"] > 50
    assert history.grad_norm == pytest.approx(norms, rel=1e-5)  # those that were clipped
    assert history.clip == (1e-2,) * (2 * WARM)
    assert list(history.step) == list(range(2 * WARM))


def test_of_steps_that_are_clipped_most_wait_to_be_told(work, plainly, monkeypatch):
    worker = work()
    loop, told = Loop(), []
    clip = lambda: nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-2)  # noqa: E731
    loop(WARM, between=clip)
    remember = worker.sentinel._remember
    monkeypatch.setattr(worker.sentinel, "_remember", lambda *words: told.append(remember(*words)))
    loop(50, between=clip)
    assert len(told) < 15


def spoilt_gradient(loop):
    next(loop.model.parameters()).grad[0, 0] = math.inf


def test_a_gradient_that_goes_bad_is_told_before_the_weights_change(work, plainly, sizes):
    worker = work(on_anomaly="continue")
    loop = Loop()
    loop(WARM)
    before = plainly["begins"]
    loop(between=lambda: spoilt_gradient(loop))
    assert before
    assert plainly["begins"] == before
    assert next((harm.what, harm.step) for harm in worker.harms) == ("gradient", WARM)


def test_a_loss_that_goes_bad_is_told_in_its_step(work, plainly, sizes):
    worker = work(on_anomaly="continue")
    loop = Loop()
    loop(WARM)
    loop(factor=math.nan)
    assert plainly["begins"]
    assert {(harm.what, harm.step) for harm in worker.harms} >= {("loss", WARM), ("gradient", WARM)}


def test_weights_that_an_update_spoils_are_told_in_its_step(work, plainly, sizes):
    worker = work(on_anomaly="continue")
    loop = Loop(torch.optim.SGD)
    loop(WARM)
    ended = plainly["ended"]
    loop.optimizer.param_groups[0]["lr"] = math.inf
    loop()
    assert plainly["begins"] == ended + 1
    assert plainly["ended"] == ended
    assert [(harm.what, harm.step) for harm in worker.harms] == [("parameter", WARM)]
    assert worker.sentinel.judge.finite_after == WARM - 1


def by_an_inner_optimizer(loop, worker):
    torch.optim.SGD(loop.model.parameters(), lr=0.0).step()


def without_a_gradient(loop, worker):
    next(loop.model.parameters()).grad = None


def by_a_sparse_gradient(loop, worker):
    weight = next(loop.model.parameters())
    weight.grad = None
    weight.grad = torch.zeros_like(weight).to_sparse()


def with_a_bad_number_that_waits(loop, worker):
    worker.sentinel.early._warner.reads.later([torch.tensor(math.inf)], lambda values: None)


OTHERWISE = [by_an_inner_optimizer, without_a_gradient, with_a_bad_number_that_waits]


@pytest.mark.parametrize("what", OTHERWISE)
def test_a_step_that_is_otherwise_is_the_sentinels(what, work, plainly):
    worker = work()
    loop = Loop()
    loop(WARM)
    before = plainly["begins"]
    loop(between=lambda: what(loop, worker))
    assert plainly["begins"] == before
    assert not worker.harms
    assert worker.events(ProbeDark) == []
    loop(WARM)
    assert plainly["begins"] > before + 10


def test_a_step_of_two_losses_is_plain_and_their_mean_is_told(work, plainly):
    worker = work()
    loop, means = Loop(), []

    def again():
        second = loop.model(loop.x).sum() * 0.1
        second.backward()
        means.append((second.item() + loop.model(loop.x).square().mean().item()) / 2)

    loop(WARM, between=again)
    before = plainly["begins"]
    loop(20, between=again)
    assert plainly["begins"] == before + 20
    assert worker.sentinel.teller.history.event().loss[-20:] == pytest.approx(means[-20:])


def test_a_second_loss_that_goes_bad_is_told_in_its_step(work, plainly):
    worker = work(on_anomaly="continue")
    loop = Loop()

    def again():
        factor = math.nan if loop.made == WARM + 3 else 0.1
        (loop.model(loop.x).sum() * factor).backward()

    loop(WARM + 4, between=again)
    assert {(harm.what, harm.step) for harm in worker.harms} >= {("loss", WARM + 3), ("gradient", WARM + 3)}


def test_large_gradients_are_plain_in_float32(work, plainly):
    worker = work()
    loop = Loop()
    loop(WARM, factor=1e7)
    before = plainly["begins"]
    loop(20, factor=1e7)
    assert max(worker.sentinel.teller.history.event().grad_norm[-20:]) > 100.0
    assert plainly["begins"] == before + 20


class Normed(Loop):
    """Trains a model with running statistics."""

    def __init__(self):
        super().__init__()
        self.model.insert(1, nn.BatchNorm1d(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)


def test_statistics_that_each_forward_writes_are_looked_at_on_the_way(work, plainly):
    worker = work(on_anomaly="continue")
    loop = Normed()
    loop(WARM)
    before = plainly["begins"]
    loop(20)
    assert plainly["begins"] == before + 20
    loop(between=lambda: loop.model[1].running_var.mul_(math.inf))
    assert plainly["begins"] == before + 20
    assert ("buffer", WARM + 20) in {(harm.what, harm.step) for harm in worker.harms}


def averaged(loop, teacher):
    with torch.no_grad():
        for one, other in zip(teacher.parameters(), loop.model.parameters(), strict=True):
            one.lerp_(other, 0.1)


def test_what_is_written_elsewhere_takes_no_trust_away(work, plainly):
    work()
    loop = Loop()
    teacher = copy.deepcopy(loop.model)
    for _ in range(WARM):
        loop()
        averaged(loop, teacher)
    before = plainly["begins"]
    for _ in range(20):
        loop()
        averaged(loop, teacher)
    assert plainly["begins"] == before + 20


@pytest.mark.parametrize("through", ["view", "data"])
def test_state_that_the_loop_writes_into_is_looked_at(through, work, plainly):
    worker = work(on_anomaly="continue")
    loop = Loop()
    loop(WARM)
    state = loop.optimizer.state[loop.model[0].bias]["exp_avg_sq"]
    before = plainly["begins"]
    loop(between=lambda: (state[:2] if through == "view" else state.data).fill_(math.inf))
    assert plainly["begins"] == before
    assert ("optimizer_state", WARM) in {(harm.what, harm.step) for harm in worker.harms}


def test_numbers_that_wait_are_read_on_the_way(work, plainly):
    worker = work()
    loop, heard = Loop(), []
    loop(WARM)
    before = plainly["begins"]
    loop(between=lambda: worker.sentinel.early._warner.reads.later([torch.tensor(3.0)], heard.extend))
    assert plainly["begins"] == before + 1
    assert heard == [3.0]
    loop()
    assert heard == [3.0]


def test_a_step_whose_batch_is_looked_at_is_plain_all_the_same(work, plainly, monkeypatch):
    """Where steps are short not every batch is looked at."""
    monkeypatch.setattr(inputs, "_EACH_SHORTER", inputs._EACH)
    worker = work()
    loop = Loop()
    loop(WARM)
    before, looks = plainly["begins"], worker.sentinel.early._inputs._usual
    (seen,) = (usual.count for usual in looks.values())
    loop(17)
    assert plainly["begins"] == before + 17
    assert [usual.count for usual in looks.values()] == [seen + 2]


def test_a_sparse_gradient_darkens_nothing(work, plainly):
    worker = work()
    loop = Loop(torch.optim.SGD)
    loop(WARM)
    loop(10, between=lambda: by_a_sparse_gradient(loop, worker))
    assert worker.events(ProbeDark) == []
    assert not worker.harms


def test_a_step_under_way_when_it_fails_is_none(work, plainly):
    """What raises within the update leaves no border behind."""
    worker = work()
    loop = Loop(torch.optim.SGD)
    loop(WARM)
    group = loop.optimizer.param_groups[0]
    group["weight_decay"] = "none"
    with pytest.raises(TypeError):
        loop()
    group["weight_decay"] = 0.0
    loop(WARM)
    assert worker.sentinel.clock.step == 2 * WARM
    assert worker.sentinel.judge.finite_after == 2 * WARM - 1
    assert not worker.harms


class Adversaries:
    """Two models, each with its optimizer and a backward of its own; the second is updated ``often`` as often."""

    def __init__(self, often=1):
        self.models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2)]
        self.optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in self.models]
        self.often, self.factor = often, 1.0

    def __call__(self, count):
        for _ in range(count):
            for which in [0] + [1] * self.often:
                self.optimizers[which].zero_grad()
                (self.models[which](torch.ones(8, 4)).square().mean() * (self.factor if which else 1.0)).backward()
                self.optimizers[which].step()


@pytest.mark.parametrize("often", [1, 3])
def test_steps_of_optimizers_that_take_turns_are_plain(often, work, plainly):
    worker = work()
    loop = Adversaries(often)
    loop(2 * WARM)
    before = plainly["begins"]
    loop(20)
    history = worker.sentinel.teller.history.event()
    assert plainly["begins"] - before > 0.9 * 20 * (1 + often)
    assert plainly["begins"] == plainly["ended"]
    assert history.optimizer[-4 * (1 + often) :] == (0, *[1] * often) * 4
    assert None not in (*history.loss, *history.grad_norm, *history.lr)
    assert not worker.harms


def test_each_of_them_is_judged_by_its_own_gradients_and_weights(work, plainly):
    worker = work(on_anomaly="continue")
    loop = Adversaries()
    loop(WARM)
    loop.optimizers[1].param_groups[0]["lr"] = math.inf
    loop(1)
    # The first one has made its update of that turn already: the count of steps has moved on.
    assert [(harm.what, harm.step) for harm in worker.harms] == [("parameter", WARM + 1)]
    assert all(one.isfinite().all() for one in loop.models[0].parameters())


def test_state_of_one_that_the_loop_writes_while_the_other_trains_is_looked_at(work, plainly):
    worker = work(on_anomaly="continue")
    loop = Adversaries()
    loop(WARM)
    loop.optimizers[0].state[loop.models[0][0].bias]["exp_avg_sq"].fill_(math.inf)
    loop(1)
    assert ("optimizer_state", WARM) in {(harm.what, harm.step) for harm in worker.harms}


def test_gradients_of_one_behind_another_are_looked_at_before_its_update(work, plainly):
    """Where optimizers have a backward in common, the second's gradients may be bad when the first one's are well."""
    worker = work(on_anomaly="continue")
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (actor, critic)]
    for turn in range(WARM + 1):
        for one in optimizers:
            one.zero_grad()
        factor = math.nan if turn == WARM else 1.0
        x = torch.ones(8, 4)
        (actor(x).square().mean() + (critic(x) * factor).square().mean()).backward()
        for one in optimizers:
            one.step()
    assert ("gradient", WARM) in {(harm.what, harm.step) for harm in worker.harms}
    assert plainly["begins"] < WARM

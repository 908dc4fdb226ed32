"""Updates whose outcome is known to be finite are not looked at; nothing that can go wrong is missed for it."""

import itertools
import math

import pytest
import torch
from torch import nn

from nandiag.runtime.look.sight import Sight
from nandiag.runtime.look.weights import Weights
from nandiag.runtime.watch import assured
from nandiag.runtime.watch.assured import Bounds

SGD, Adam, AdamW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
UPDATES = assured.UPDATES


@pytest.fixture(autouse=True)
def all_steps_are_short(monkeypatch):
    monkeypatch.setattr(assured, "_SHORT", math.inf)


@pytest.fixture
def looks(monkeypatch):
    """How many looks at the weights were made after updates."""
    made = []
    original = Weights.scalars

    def scalars(self, *args, **kwargs):
        made.append(kwargs)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Weights, "scalars", scalars)
    return made


class Loop:
    """Trains a weight of which one half is never used; ``before`` is called before each update but the first few."""

    def __init__(self, make, before=lambda loop: None):
        self.weight = nn.Parameter(torch.ones(8))
        self.optimizer = make([self.weight])
        self.before = before
        self.made = 0

    def __call__(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            (self.weight[:4] * 2).square().mean().backward()
            if self.made > 4:
                self.before(self)
            self.optimizer.step()
            self.made += 1


WAYS = [
    (SGD, {"lr": 0.01}),
    (SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (Adam, {"lr": 1e-3}),
    (Adam, {"lr": 1e-3, "amsgrad": True, "foreach": True}),
    (AdamW, {"lr": 1e-3}),
    (AdamW, {"lr": 1e-3, "foreach": True}),
    (AdamW, {"lr": 1e-3, "fused": True}),
]


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_the_weights_are_looked_at_now_and_then(kind, options, work, looks):
    worker = work()
    loop = Loop(lambda weights: kind(weights, **options))
    loop(4 * UPDATES + 1)
    assert len(looks) == 5
    assert all(one["whole"] for one in looks)
    assert worker.sentinel.judge.finite_after == 4 * UPDATES
    assert not worker.harms


@pytest.mark.parametrize(("kind", "options"), [*WAYS, (Adam, {"lr": 1e-3, "weight_decay": 0.1})])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e6, 1e12])
def test_the_bounds_hold(kind, options, size):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16))
    optimizer = kind([weight], **options)
    bounds = Bounds(*[2.0 * float(weight.detach().norm())] * 3)
    for number in range(UPDATES):
        weight.grad = torch.randn(16) * size * (-10.0) ** (number % 3 - 1)
        bounds = bounds.after(optimizer.param_groups[0], float(weight.grad.norm()), decoupled=kind is AdamW)
        optimizer.step()
        state = optimizer.state[weight]
        first = [state[key] for key in ("exp_avg", "momentum_buffer") if key in state]
        second = [state[key] for key in ("exp_avg_sq", "max_exp_avg_sq") if key in state]
        for bound, tensors in zip(bounds, ([weight], first, second), strict=True):
            assert all(float(one.detach().abs().max()) <= bound for one in tensors)


def test_groups_of_one_optimizer_are_all_counted():
    """Whatever their order, a bound is one of every group's weights."""
    one, other = {"lr": 1.0, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0}, None
    other = {**one, "lr": 0.0, "momentum": 0.9}
    for groups in itertools.permutations([one, other]):
        bounds = Bounds(1.0, 5.0, 0.0)
        for group in groups:
            bounds = bounds.after(group, 1.0, decoupled=False)
        assert bounds.weight >= 1.0 + 5.0
        assert bounds.first >= 6.0


def by_hand(loop):
    with torch.no_grad():
        loop.weight.clamp_(-10, 10)


def by_data(loop):
    loop.weight.data.clamp_(-10, 10)


def by_new_data(loop):
    loop.weight.data = loop.weight.data.clone()


def with_a_hook(loop):
    if loop.made == 5:
        loop.optimizer.register_step_pre_hook(lambda *_: None)


def with_a_hook_after(loop):
    if loop.made == 5:
        loop.optimizer.register_step_post_hook(lambda *_: None)


def rate(value):
    def change(loop):
        loop.optimizer.param_groups[0]["lr"] = value

    return change


def option(name, value):
    def change(loop):
        loop.optimizer.param_groups[0][name] = value

    return change


DOUBTS = [
    by_hand, by_data, by_new_data, with_a_hook, with_a_hook_after, rate(1e4), rate(torch.tensor(1e-3)),
    option("eps", 1e-32), option("weight_decay", 1e4),
]  # fmt: skip


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_may_write_or_is_out_of_bounds_is_looked_at_each_time(doubt, work, looks):
    work()
    loop = Loop(lambda weights: AdamW(weights, lr=1e-3), doubt)
    loop(5)
    looks.clear()
    loop(6)
    assert len(looks) == 6


def test_a_huge_update_is_seen_in_its_step(work):
    """The unused half overflows by the weight decay alone: neither loss nor gradients show it."""

    def overflows(loop):
        if loop.made == 20:
            loop.optimizer.param_groups[0].update(lr=1e3, weight_decay=1e38)
            loop.weight.data[4:] = 100.0

    worker = work()
    Loop(lambda weights: SGD(weights, lr=1e-3), overflows)(21)
    assert [(harm.what, harm.step, harm.phase) for harm in worker.harms] == [("parameter", 20, "optimizer")]


@pytest.mark.parametrize("way", ["in_place", "data", "new_data"])
def test_a_bad_value_written_by_hand_is_seen_in_its_step(way, work):
    def spoils(loop):
        if loop.made != 20:
            return
        with torch.no_grad():
            if way == "in_place":
                loop.weight[7] = math.nan
            elif way == "data":
                loop.weight.data[7] = math.nan
            else:
                loop.weight.data = torch.cat([loop.weight.data[:7], torch.tensor([math.nan])])

    worker = work()
    Loop(lambda weights: AdamW(weights, lr=1e-3), spoils)(22)
    assert [(harm.what, harm.step) for harm in worker.harms if harm.what == "parameter"] == [("parameter", 20)]


def test_what_nobody_saw_written_is_found_by_the_next_look(work):
    worker = work()
    kept = []

    def spoils(loop):
        if loop.made == 20:
            kept[0][7] = math.nan

    loop = Loop(lambda weights: AdamW(weights, lr=1e-3), spoils)
    kept.append(loop.weight.detach().numpy())
    loop(20 + UPDATES)
    (step,) = {harm.step for harm in worker.harms if harm.what == "parameter"}
    assert 20 <= step < 20 + UPDATES


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_looked_at_each_time(dtype, work, looks):
    work()
    loop = Loop(lambda weights: SGD(weights, lr=1e-3))
    loop.weight.data = loop.weight.data.to(dtype)
    loop(6)
    assert len(looks) == 6


def test_what_lies_on_a_device_is_not_asked_for_all_at_once(work):
    worker = work()
    weight = nn.Parameter(torch.ones(2, device="meta"))
    sight = Sight((), 1.0, False, None, True, True, fine=True)
    worker.capture.step_seconds = 1e-4
    worker.sentinel._assured.begins(SGD([weight]), sight, seen=True)
    worker.sentinel._assured.look(SGD([weight]))
    assert not worker.sentinel._assured._whole


def test_an_optimizer_of_the_scripts_own_is_looked_at_each_time(work, looks):
    class Mine(SGD):
        pass

    work()
    Loop(lambda weights: Mine(weights, lr=1e-3))(6)
    assert len(looks) == 6


def test_two_optimizers_by_turns_are_looked_at_each_time_and_soon_without_more_ado(work, looks):
    worker = work()
    one, other = Loop(lambda weights: SGD(weights, lr=1e-3)), Loop(lambda weights: SGD(weights, lr=1e-3))
    for _ in range(10):
        one(1)
        other(1)
    assert len(looks) == 20
    assert not looks[-1]["whole"]
    assert not worker.harms


@pytest.mark.parametrize("bad", range(2, 12))
def test_state_that_a_huge_gradient_spoils_is_seen_in_its_step(bad, work):
    worker = work()
    model = nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(bad + 2):
        optimizer.zero_grad()
        (model(torch.full((8, 5), 1e11 if step == bad else 1.0)) ** 2).mean().backward()
        optimizer.step()
    assert (worker.harms[0].what, worker.harms[0].step) == ("optimizer_state", bad)

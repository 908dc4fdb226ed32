"""Updates whose outcome is known to be finite are not looked at; nothing that can go wrong is missed for it."""

import copy
import gc
import itertools
import math
import threading

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from nandiag.runtime.look.weights import Weights
from nandiag.runtime.steady import assured
from nandiag.runtime.steady.assured import Bounds

SGD, Adam, AdamW, RMSprop = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
UPDATES = assured.UPDATES


@pytest.fixture(autouse=True)
def all_looks_are_dear(monkeypatch):
    monkeypatch.setattr(assured, "_SHARE", 0.0)


@pytest.fixture
def looks(monkeypatch):
    """The looks at weights and state that were made after updates, other than those at weights alone."""
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
        self.alias = torch.ones(8)
        self.weight = nn.Parameter(self.alias)
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
    (RMSprop, {"lr": 1e-3}),
    (RMSprop, {"lr": 1e-3, "momentum": 0.9, "foreach": True}),
]


@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_the_state_is_looked_at_now_and_then(kind, options, work, looks):
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
    bounds = Bounds(0.0, 0.0)
    for number in range(UPDATES):
        weight.grad = torch.randn(16) * size * (-10.0) ** (number % 3 - 1)
        norms = float(weight.grad.norm()), 2.0 * float(weight.detach().norm())
        bounds = bounds.after(optimizer.param_groups[0], *norms, decoupled=kind is AdamW)
        optimizer.step()
        state = optimizer.state[weight]
        first = [state[key] for key in ("exp_avg", "momentum_buffer") if key in state]
        second = [state[key] for key in ("exp_avg_sq", "max_exp_avg_sq", "square_avg") if key in state]
        # RMSprop's momentum adds up gradients over the root of their squares: nothing beside the room that is left.
        more = 1e9 if kind is RMSprop else 0.0
        for bound, tensors in zip(bounds, (first, second), strict=True):
            assert all(float(one.abs().max()) <= bound + more for one in tensors)


def test_groups_of_one_optimizer_are_all_counted():
    """Whatever their order, a bound is one of every group's state."""
    one = {"lr": 1.0, "weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0}
    other = {**one, "weight_decay": 0.5, "momentum": 0.9}
    for groups in itertools.permutations([one, other]):
        bounds = Bounds(5.0, 0.0)
        for group in groups:
            bounds = bounds.after(group, 1.0, 10.0, decoupled=False)
        assert bounds.first >= 5.0 + 1.0 + 0.5 * 10.0


def with_a_hook(loop):
    if loop.made == 5:
        loop.optimizer.register_step_pre_hook(lambda *_: None)


def with_a_hook_after(loop):
    if loop.made == 5:
        loop.optimizer.register_step_post_hook(lambda *_: None)


def option(name, value):
    def change(loop):
        loop.optimizer.param_groups[0][name] = value

    return change


def loaded(loop):
    loop.optimizer.load_state_dict(loop.optimizer.state_dict())


def by_hand(loop):
    with torch.no_grad():
        loop.weight.clamp_(-10, 10)


def in_state(loop):
    loop.optimizer.state[loop.weight]["exp_avg"].mul_(0.5)


DOUBTS = [
    by_hand,
    in_state,
    with_a_hook,
    with_a_hook_after,
    loaded,
    option("weight_decay", 1e4),
    option("betas", (1.1, 0.9)),
]


@pytest.mark.parametrize("doubt", DOUBTS)
def test_state_that_may_be_written_or_is_out_of_bounds_is_looked_at_each_time(doubt, work, looks):
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


def in_place(loop):
    with torch.no_grad():
        loop.weight[7] = math.nan


def data(loop):
    loop.weight.data[7] = math.nan


def new_data(loop):
    loop.weight.data = torch.cat([loop.weight.data[:7], torch.tensor([math.nan])])


def numpys(loop):
    loop.weight.detach().numpy()[7] = math.nan


def into_an_alias(loop):
    torch.div(torch.ones(1), torch.zeros(1), out=loop.alias[7:])


def in_a_thread(loop):
    thread = threading.Thread(target=data, args=(loop,))
    thread.start()
    thread.join()


def in_a_hook(loop):
    def hook(_):
        data(loop)
        handle.remove()

    handle = loop.weight.register_post_accumulate_grad_hook(hook)
    (loop.weight[:4] * 0).sum().backward()


@pytest.mark.parametrize("few", [assured._FEW, 0])
@pytest.mark.parametrize("write", [in_place, data, new_data, numpys, into_an_alias, in_a_thread, in_a_hook])
def test_a_bad_value_that_is_written_is_seen_in_its_step(write, few, work, monkeypatch):
    """However it is written, and were it by ways that nobody sees."""
    monkeypatch.setattr(assured, "_FEW", few)

    def spoils(loop):
        if loop.made == 20:
            write(loop)

    worker = work()
    Loop(lambda weights: AdamW(weights, lr=1e-3), spoils)(22)
    harms = [(harm.what, harm.step, harm.since) for harm in worker.harms if harm.what == "parameter"]
    assert harms == [("parameter", 20, 19)]
    assert worker.sentinel.judge.finite_after == 19


@pytest.mark.parametrize("way", ["replaced", "loaded", "data"])
def test_weights_that_edited_state_spoils_are_seen_in_their_step(way, work):
    def spoils(loop):
        if loop.made != 20:
            return
        state = loop.optimizer.state[loop.weight]
        if way == "replaced":
            state["exp_avg_sq"] = state["exp_avg_sq"] - 1
        elif way == "data":
            state["exp_avg_sq"].numpy()[:] -= 1
        else:
            edited = copy.deepcopy(loop.optimizer.state_dict())
            edited["state"][0]["exp_avg_sq"] -= 1
            loop.optimizer.load_state_dict(edited)

    worker = work()
    Loop(lambda weights: Adam(weights, lr=1e-3), spoils)(22)
    assert [(harm.what, harm.step, harm.since) for harm in worker.harms[:1]] == [("parameter", 20, 19)]
    assert worker.sentinel.judge.finite_after == 19


def test_state_that_somebody_else_spoils_is_dated_to_the_last_look_at_all_of_it(work, looks):
    def spoils(loop):
        if loop.made == UPDATES + 4:
            loop.optimizer.state[loop.weight]["exp_avg_sq"].numpy()[7] = math.inf

    worker = work()
    Loop(lambda weights: Adam(weights, lr=1e-3), spoils)(3 * UPDATES)
    (harm,) = worker.harms
    assert harm.what == "optimizer_state"
    assert 0 <= harm.since < UPDATES + 4 <= harm.step <= harm.since + UPDATES


def test_state_that_somebody_else_spoils_is_told_though_the_run_ends_before_all_of_it_is_looked_at(work, looks):
    def spoils(loop):
        if loop.made == UPDATES + 4:
            loop.optimizer.state[loop.weight]["exp_avg_sq"].numpy()[7] = math.inf

    worker = work()
    loop = Loop(lambda weights: Adam(weights, lr=1e-3), spoils)
    loop(UPDATES + 8)
    assert not worker.harms
    worker.sentinel.finish()
    assert [(harm.what, harm.step, harm.behind) for harm in worker.harms] == [("optimizer_state", UPDATES + 7, False)]


@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_on_all_optimizers_is_not_trusted_though_it_was_there_from_the_start(when, work, looks):
    work()
    register = getattr(optimizers, f"register_optimizer_step_{when}_hook")
    handle = register(lambda *_: None)
    loop = Loop(lambda weights: AdamW(weights, lr=1e-3))  # kept: there is a last look when an optimizer goes
    loop(6)
    handle.remove()
    assert len(looks) == 6


@pytest.mark.parametrize(("when", "what"), [("pre", "gradient"), ("post", "parameter")])
def test_what_a_hook_on_all_optimizers_spoils_is_seen_in_its_step(when, what, work):
    def spoils(optimizer, *_):
        if loop.made == 20:
            (loop.weight.grad if when == "pre" else loop.weight.data)[7] = math.inf

    worker = work()
    handle = getattr(optimizers, f"register_optimizer_step_{when}_hook")(spoils)
    loop = Loop(lambda weights: Adam(weights, lr=1e-3))
    loop(22)
    handle.remove()
    assert [(harm.what, harm.step, harm.since) for harm in worker.harms[:1]] == [(what, 20, 19)]


@pytest.mark.parametrize("few", [assured._FEW, 0])
def test_weights_whose_optimizer_is_gone_are_not_held(few, work, monkeypatch):
    monkeypatch.setattr(assured, "_FEW", few)
    worker = work()
    loop = Loop(lambda weights: AdamW(weights, lr=1e-3))
    loop(UPDATES // 2)
    vectors = worker.sentinel.assurances.of(loop.optimizer)._vectors
    assert len(vectors._flat) == (few == 0)
    del loop.optimizer
    gc.collect()
    assert not vectors._flat


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_looked_at_each_time(dtype, work, looks):
    work()
    loop = Loop(lambda weights: SGD(weights, lr=1e-3))
    loop.weight.data = loop.weight.data.to(dtype)
    loop(6)
    assert len(looks) == 6


@pytest.mark.parametrize(("share", "all_are_looked_at"), [(0.0, False), (math.inf, True)])
def test_a_look_is_left_out_only_where_it_takes_a_part_of_the_step_to_speak_of(
    share, all_are_looked_at, work, looks, monkeypatch
):
    monkeypatch.setattr(assured, "_SHARE", share)
    work()
    loop = Loop(AdamW)
    loop(3 * UPDATES)
    assert (len(looks) == 3 * UPDATES) is all_are_looked_at


def test_an_optimizer_of_the_scripts_own_is_looked_at_each_time(work, looks):
    class Mine(SGD):
        pass

    work()
    loop = Loop(lambda weights: Mine(weights, lr=1e-3))
    loop(6)
    assert len(looks) == 6


def test_of_two_optimizers_by_turns_each_is_trusted_by_itself(work, looks):
    worker = work()
    one, other = Loop(lambda weights: SGD(weights, lr=1e-3)), Loop(lambda weights: SGD(weights, lr=1e-3))
    for _ in range(10):
        one(1)
        other(1)
    assert len(looks) == 2
    assert all(one["whole"] for one in looks)
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

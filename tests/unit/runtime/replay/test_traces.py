"""What a replay must leave alone, looked at right before and right after it, in modules that keep state."""

# ruff: noqa: S311, NPY002, T201, ARG002 - scripts print, use every generator, and not all that they are given

import collections
import contextlib
import io
import logging
import math
import random
import sys
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from nandiag.runtime.memory import overwritten
from nandiag.runtime.public import AnomalyStop
from nandiag.runtime.replay.examine import Examiner

BAD = 2


def bits(tensor):
    if tensor is None:
        return None
    return tensor.dtype, tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist()


class Keeper(nn.Module):
    """Keeps something of each call in the way that ``keep`` says."""

    def __init__(self, keep):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.keep = keep
        self.bad = False

    def forward(self, x):
        out = self.layer(x)
        self.keep(self, out)
        return (out.square() * (not self.bad)).log()


def train(model, steps=4, before_step=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        model.bad = step == BAD
        loss = model(torch.randn(3, 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        before_step()
        optimizer.step()
    return optimizer


@pytest.fixture
def around_replays(work, monkeypatch):
    """Arm, and compare what ``see()`` returns right before and right after each replay; returns the list of pairs."""

    def watch(see, **options):
        worker = work(**options)
        pairs = []
        examine = Examiner.examine

        def compared(self, case):
            before = see()
            looked = examine(self, case)
            pairs.append((before, see(), looked))
            return looked

        monkeypatch.setattr(Examiner, "examine", compared)
        worker.pairs = pairs
        return worker

    return watch


def nothing_moved(worker):
    assert worker.pairs, "nothing was examined"
    looked = worker.pairs[0][2]
    assert looked.outcome == "found", looked
    assert looked.site.op == "aten.log.default"
    for before, after, _ in worker.pairs:
        assert before == after


# ---------------------------------------------------------------------- what modules keep


class Carried:
    """Attributes that a forward moves, by the way it does so."""

    def number(self, module, out):
        module.calls = getattr(module, "calls", 0) + 1

    def tensor(self, module, out):
        module.last = out.detach() + getattr(module, "last", 0)

    def tensor_in_place(self, module, out):
        module.__dict__.setdefault("sum", torch.zeros(3, 4)).add_(out.detach())

    def listed(self, module, out):
        module.__dict__.setdefault("seen", []).append(out.detach())

    def counted(self, module, out):
        module.__dict__.setdefault("count", collections.Counter())["calls"] += 1

    def mapped(self, module, out):
        table = module.__dict__.setdefault("table", {})
        table[f"call {len(table)}"] = out.detach()

    def queued(self, module, out):
        module.__dict__.setdefault("queue", collections.deque(maxlen=2)).append(float(out.detach().sum()))

    def gathered(self, module, out):
        module.__dict__.setdefault("sums", set()).add(float(out.detach().sum()))

    def buffer_in_place(self, module, out):
        if "total" not in module._buffers:
            module.register_buffer("total", torch.zeros(()))
        module.total += out.detach().sum()

    def buffer_anew(self, module, out):
        module._buffers["total"] = module._buffers.get("total", torch.zeros(())) * 0.9 + out.detach().sum()

    def new_name(self, module, out):
        if not module.bad:
            return
        setattr(module, f"call_{len(vars(module))}", 1)


def everything(model):
    """What the modules hold: the very objects, and for containers and tensors what is in them."""

    def form(value):
        if isinstance(value, torch.Tensor):
            return id(value), value._version, bits(value)
        if isinstance(value, dict):
            return id(value), [(key, form(one)) for key, one in value.items()]
        if isinstance(value, list | collections.deque):
            return id(value), [form(one) for one in value]
        if isinstance(value, set):
            return id(value), sorted(value)
        return value

    return [(name, form(value)) for module in model.modules() for name, value in vars(module).items()]


@pytest.mark.parametrize("way", [name for name in vars(Carried) if not name.startswith("__")])
def test_what_a_module_keeps(way, around_replays):
    model = Keeper(getattr(Carried(), way))
    worker = around_replays(lambda: everything(model))
    train(model)
    nothing_moved(worker)


def test_which_weights_are_trained_stays_as_a_forward_has_set_it(around_replays):
    """Layers that are thawed, or frozen, as training goes on."""
    model = Keeper(lambda module, _: module.layer.bias.requires_grad_(not module.layer.bias.requires_grad))
    worker = around_replays(lambda: [one.requires_grad for one in model.parameters()])
    train(model)
    nothing_moved(worker)


# ---------------------------------------------------------------------- tensors wherever they are


class Elsewhere:
    """Tensors outside of modules that a forward writes into, by the way it does so."""

    def __init__(self):
        self.sums = torch.zeros(3, 4)
        self.table = torch.zeros(5, 4)
        self.statistics = torch.zeros(4), torch.ones(4)

    def in_place(self, module, out):
        self.sums.mul_(0.9).add_(out.detach(), alpha=0.1)

    def by_data(self, module, out):
        self.sums.data = 0.9 * self.sums.data + out.detach()

    def rows(self, module, out):
        self.table[1:4] += out.detach()
        self.table.index_add_(0, torch.tensor([0, 0, 4]), out.detach())

    def through_foreach(self, module, out):
        torch._foreach_mul_([self.sums, self.table], 0.5)

    def as_output(self, module, out):
        torch.add(self.sums, out.detach(), out=self.sums)

    def normalised(self, module, out):
        torch.nn.functional.batch_norm(out.detach(), *self.statistics, training=True)


@pytest.mark.parametrize("way", [name for name in vars(Elsewhere) if not name.startswith("__")])
def test_tensors_that_the_modules_do_not_hold(way, around_replays):
    """In nothing that can be followed: the very memory is put back."""
    held = Elsewhere()
    hidden = weakref.WeakValueDictionary({"held": held})

    def keep(module, out):
        getattr(hidden["held"], way)(module, out)

    model = Keeper(keep)
    tensors = [held.sums, held.table, *held.statistics]
    worker = around_replays(lambda: [(id(one), one._version, bits(one)) for one in tensors])
    train(model)
    nothing_moved(worker)


@pytest.mark.parametrize("policy", ["auto", "continue"])
def test_more_than_can_be_put_back_is_written_over_only_where_the_run_ends(policy, around_replays, monkeypatch):
    monkeypatch.setattr(overwritten, "_MOST_BYTES", 100)
    sums = torch.zeros(3, 40)
    model = Keeper(lambda module, out: sums.add_(1))
    worker = around_replays(lambda: bits(sums), on_anomaly=policy)
    with pytest.raises(AnomalyStop) if policy == "auto" else contextlib.nullcontext():
        train(model)
    before, after, looked = worker.pairs[0]
    if policy == "auto":
        assert looked.outcome == "found"
    else:
        assert (looked.outcome, before == after) == ("refused", True)
        assert "more than could be put back" in looked.reason


# ---------------------------------------------------------------------- gradients, generators, hooks


def test_gradients_are_the_same_objects_with_the_same_bits(around_replays):
    model = Keeper(lambda *_: None)
    worker = around_replays(lambda: [(id(one.grad), one.grad._version, bits(one.grad)) for one in model.parameters()])
    train(model)
    nothing_moved(worker)


def test_a_parameter_without_a_gradient_gets_none(around_replays):
    model = Keeper(lambda *_: None)
    model.other = nn.Linear(2, 2)
    worker = around_replays(lambda: [one.grad is None for one in model.parameters()])
    train(model)
    nothing_moved(worker)
    assert worker.pairs[0][0] == [False, False, True, True]


def test_every_generator(around_replays):
    own = torch.Generator()

    def draw():
        return torch.randn(4, generator=own) + torch.randn(4) + random.random() + np.random.rand()

    def see():
        streams = np.random.get_state()
        return bits(torch.get_rng_state()), bits(own.get_state()), random.getstate(), streams[1].tolist(), streams[2]

    model = Keeper(lambda *_: draw())
    model.own = own
    worker = around_replays(see)
    train(model, before_step=draw)  # a replay ends before this draw
    nothing_moved(worker)


def test_a_generator_of_the_loop(around_replays):
    own = torch.Generator()
    worker = around_replays(lambda: bits(own.get_state()))
    model = Keeper(lambda *_: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        model.bad = step == BAD
        loss = (model(torch.randn(3, 4, generator=own)) + torch.rand(3, 4, generator=own)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    nothing_moved(worker)


def hooks_of(model):
    every = [one._forward_hooks | one._forward_pre_hooks | one._backward_hooks for one in model.modules()]
    return every, [dict(one._backward_hooks or {}) for one in model.parameters()]


def test_no_hook_is_left_behind(around_replays):
    model = Keeper(lambda *_: None)
    worker = around_replays(lambda: hooks_of(model))
    train(model)
    nothing_moved(worker)
    assert not any(hooks_of(model)[0])


def test_the_scripts_own_hooks_do_not_run_twice_where_auto_goes_on(around_replays):
    """The loss is bad and the gradients are not: nothing that would be trained is harmed."""
    model, calls = nn.Linear(4, 4), []
    model.register_forward_hook(lambda module, args, out: calls.append(1))
    worker = around_replays(lambda: len(calls), on_anomaly="auto")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        loss = model(torch.randn(3, 4)).square().mean() + (torch.zeros(()).log() if step == BAD else 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [looked.outcome for _, _, looked in worker.pairs] == ["refused"]
    assert len(calls) == 4


@pytest.mark.parametrize("policy", ["continue", "skip"])
def test_the_scripts_own_hooks_do_not_run_twice_where_the_run_goes_on(policy, around_replays):
    """What such a hook writes lies anywhere, and could not be put back."""
    model, calls = Keeper(lambda *_: None), []
    model.layer.register_forward_hook(lambda module, args, out: calls.append(1))
    worker = around_replays(lambda: (hooks_of(model), len(calls)), on_anomaly=policy)
    train(model)
    assert worker.pairs[0][2].outcome == "refused"
    assert all(before == after for before, after, _ in worker.pairs)
    assert len(calls) == 4


def test_the_modes_of_torch(around_replays):
    def see():
        return (
            torch.is_grad_enabled(), torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
            torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled(), torch.get_default_dtype(),
        )  # fmt: skip

    worker = around_replays(see)
    train(Keeper(lambda *_: None))
    nothing_moved(worker)


# ---------------------------------------------------------------------- what is printed


def test_nothing_is_printed_or_logged_twice(around_replays, capfd):
    logger = logging.getLogger("a_script")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)

    def keep(module, out):
        print("out", module.bad)
        sys.stdout.buffer.write(b"bytes\n")
        sys.stdout.flush()
        logger.warning("logged")
        warnings.warn("warned", stacklevel=2)

    worker = around_replays(lambda: (sys.stdout, sys.stderr, logging.root.manager.disable))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        train(Keeper(keep))
    logger.removeHandler(handler)
    nothing_moved(worker)
    out, err = capfd.readouterr()
    assert (out.count("out"), out.count("bytes"), err.count("logged")) == (4, 4, 4)


def test_nothing_is_written_twice_by_way_of_the_streams_python_began_with(around_replays, monkeypatch):
    began, saved = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "__stdout__", began)
    monkeypatch.setattr(sys, "stdout", saved)

    def keep(module, out):
        print("saved", file=saved)
        saved.writelines(["lines\n"])
        sys.__stdout__.write("began\n")

    worker = around_replays(lambda: (sorted(vars(began)), sorted(vars(saved)), saved.write.__qualname__))
    train(Keeper(keep))
    nothing_moved(worker)
    said = saved.buffer.getvalue().decode()
    assert (said.count("saved"), said.count("lines"), began.buffer.getvalue().decode().count("began")) == (4, 4, 4)


def test_a_redirected_stdout_gets_nothing(around_replays):
    worker = around_replays(lambda: sys.stdout)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        train(Keeper(lambda *_: print("once")))
    nothing_moved(worker)
    assert printed.getvalue() == "once\n" * 4


# ---------------------------------------------------------------------- graphs that are open


def test_a_graph_that_is_open_can_still_be_walked(around_replays):
    """What the graph of a second loss saved is written to in the replay, and must not seem to have been."""

    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            self.scale += 1
            return self.layer(x)

    model, norm = Moving(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, norm)]
    worker = around_replays(lambda: [(one._version, bits(one)) for one in (*model.buffers(), *norm.buffers())])
    weight = torch.ones(4, requires_grad=True)
    for step in range(4):
        other = norm(torch.randn(3, 4))
        loss = (model(torch.randn(3, 4) + other.detach()).square() * (step != BAD)).log().mean()
        side = (weight * model.scale).sum()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (other.square().mean() + side).backward()
        optimizers[1].step()
    nothing_moved(worker)


def test_a_replay_that_fails_leaves_no_trace_either(around_replays):
    """The script's forward refuses to run twice."""
    calls = collections.Counter()

    def keep(module, out):
        calls["all"] += 1
        module.calls = getattr(module, "calls", 0) + 1
        if calls["all"] == BAD + 2:
            raise RuntimeError("not twice")

    model = Keeper(keep)
    worker = around_replays(lambda: (everything(model), [bits(one.grad) for one in model.parameters()]))
    with contextlib.suppress(RuntimeError):
        train(model)
    (before, after, looked), *_ = worker.pairs
    assert (looked.outcome, looked.reason) == ("failed", "RuntimeError: not twice")
    assert before == after
    assert not worker.capture.off


def test_the_optimizers_state_stays_in_its_order(work):
    """The first update is made again, on the parameter that it left bad, as if that had had no state."""
    worker = work()
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    sum(one.square().sum() for one in weights).backward()
    weights[0].grad.fill_(math.nan)
    optimizer.step()
    assert [one.phase for one in worker.looked][-1:] == ["optimizer"]
    assert [id(one) for one in optimizer.state] == [id(one) for one in weights]

"""Faults in forward: what the replay names, and that no bit changes."""

# ruff: noqa: S311, NPY002 - every generator that a script may use is used on purpose

import functools
import random

import numpy as np
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.unit.runtime.replay.faults.table import (
    BAD,
    Table,
    data,
    each_of,
    marked_line,
    named_without_a_trace,
    net,
    plainly,
    sgd,
)

TABLE = Table()
fault = TABLE.fault


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        floor = 0.0 if self.calls == BAD + 1 else 0.5
        return (x.abs() * 0 + floor).log()  # <-


def _log_in_forward():
    model = net(Logarithm())
    return plainly(model, torch.optim.Adam(model.parameters()), lambda step, out, y: (out - y).square().mean())


TABLE.add(_log_in_forward, {
    "op": "aten.log.default", "phase": "forward", "source": "op", "step": BAD, "module": "1",
    "line": marked_line(Logarithm),
}, "log_in_a_module")  # fmt: skip


@fault("aten.div.Tensor", "forward", module="gate")
def a_module_that_is_used_twice():
    class Gate(nn.Module):
        def forward(self, x, by):
            return x / by  # <-

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.gate = nn.Linear(4, 3), Gate()

        def forward(self, x, by):
            return self.gate(self.gate(self.first(x), torch.ones(())), by)

    model = Twice()
    optimizer = sgd(model)
    for step, x, y in data():
        loss = (model(x, torch.tensor(float(step != BAD))) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.exp.default", "forward", module="1")
def overflow_with_dropout_and_every_generator():
    class Noisy(nn.Module):
        def forward(self, x):
            scale = 200.0 if self.bad else 1.0
            noise = torch.randn_like(x) * random.random() * float(np.random.random())
            return torch.exp(x.abs() + scale) + noise  # <-

    model = net(Noisy(), nn.Dropout(0.5))
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        loss = (model(x) - y + torch.rand(())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.log.default", "forward", module="")
def only_the_very_same_draw_does_harm():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            drawn = torch.rand(()) + random.random() + np.random.random()
            return self.layer(x) * (drawn - self.target).abs().log()  # <-

    model = Drawing()
    optimizer = sgd(model)
    for step, x, y in data():
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        drawn = torch.rand(()) + random.random() + np.random.random()
        model.target = drawn if step == BAD else -1
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.sqrt.default", "forward", module="2")
def batch_norm_and_its_running_statistics():
    class Root(nn.Module):
        def forward(self, x):
            return torch.sqrt(x - (10.0 if self.bad else -10.0))  # <-

    model = net(nn.BatchNorm1d(8), Root())
    optimizer = sgd(model, momentum=0.9)
    for step, x, y in data():
        model[2].bad = step == BAD
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.log.default", "loss", module=None)
def a_derivative_that_goes_forward():
    """What is dual lives within its level alone, which the loop has left by the time of the backward."""
    model = net()
    optimizer = sgd(model)
    for step, x, y in data():
        with forward_ad.dual_level():
            output, slope = forward_ad.unpack_dual(model(forward_ad.make_dual(x, torch.ones_like(x))))
            loss = (output - y).square().mean() + (slope.square().mean() * (step != BAD)).log()  # <-
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


@fault("aten.exp.default", "forward", module="1")
def under_autocast():
    class Exponent(nn.Module):
        def forward(self, x):
            return torch.exp(x.half() * 0 + (12.0 if self.bad else 1.0)).float()  # <-

    model = net(Exponent())
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


def checkpointing(*, use_reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(4, 4)

        def inner(self, x):
            return torch.log(self.up(x).abs() * (not self.bad))  # <-

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=use_reentrant)

    model = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 3))
    optimizer = sgd(model)
    for step, x, y in data():
        model[1].bad = step == BAD
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


for _reentrant in (True, False):
    TABLE.add(functools.partial(checkpointing, use_reentrant=_reentrant), {
        "op": "aten.log.default", "phase": "forward", "source": "op", "step": BAD, "module": "1",
        "line": marked_line(checkpointing),
    }, f"checkpointing_reentrant_{_reentrant}")  # fmt: skip


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)

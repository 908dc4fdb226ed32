"""Faults beside what is written in place or set anew by the step: what the replay names, and that no bit changes."""

import functools

import torch
from torch import nn

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


@fault("aten.div_.Tensor", "loss", module=None)
def in_place_in_the_loss():
    model = net()

    def loss_of(step, out, y):
        error = (out - y).square()
        error.div_(torch.tensor(float(step != BAD)))  # <-
        return error.mean()

    return plainly(model, sgd(model), loss_of)


@fault("aten.div.Tensor", "loss", module=None)
def rows_filled_one_by_one():
    model = net()

    def loss_of(step, out, y):
        rows = torch.zeros(5)
        for index in range(5):
            rows[index] = out[index].sum() / torch.tensor(float((step, index) != (BAD, 3)))  # <-
        return rows.square().mean()

    return plainly(model, sgd(model), loss_of)


class Power(nn.Module):
    """Power iteration, which gives its buffer a new tensor each time, and is called twice a step."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.calls = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 3)), 0
        self.register_buffer("u", torch.randn(3))

    def forward(self, x):
        self.calls += 1
        v = self.weight.detach() @ self.u * (self.calls <= 2 * BAD)
        self.u = v / v.norm()  # <-
        return self.first(x) @ (self.weight / (self.u @ self.weight @ self.u)).T


class Recurrent(nn.Module):
    """Keeps its state as a plain attribute, which it sets anew."""

    def __init__(self):
        super().__init__()
        self.first, self.state, self.calls = nn.Linear(4, 3), torch.ones(3), 0

    def forward(self, x):
        self.calls += 1
        out = self.first(x) + self.state
        self.state = (out.detach().mean(0).abs() + 1) / torch.tensor(float(self.calls != 2 * BAD + 1))  # <-
        return out


def _set_anew(kind):
    model = kind()
    optimizer = sgd(model)
    for _, x, y in data():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() + (model(-x) - y).square().mean()
        loss.backward()
        optimizer.step()
    return model, optimizer


for _model, _as in ((Power, "a_buffer_that_is_set_anew"), (Recurrent, "a_state_that_is_set_anew")):
    TABLE.add(functools.partial(_set_anew, _model), {
        "op": "aten.div.Tensor", "phase": "forward", "source": "op", "step": BAD, "module": "",
        "line": marked_line(_model),
    }, _as)  # fmt: skip


@each_of(TABLE)
def test_the_fault_is_named_and_no_trace_left(function, expected, level, work):
    named_without_a_trace(function, expected, work, level)

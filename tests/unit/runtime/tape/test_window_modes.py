"""The window lies below the script's own modes, and no mode of the script's sees it."""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.events import ProbeDark
from nandiag.runtime.recorder import RECORDER
from tests.unit.runtime.tape.opening import depth, names


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_it_opens_after_a_root_and_closes_for_a_backward(opened):
    loss = opened.output.square().mean()
    closed = []
    loss.register_hook(lambda gradient: closed.append(depth()))
    loss.backward()
    assert closed == [0]
    assert {"square", "mean"} <= set(names(opened.capture))


def test_a_device_context_pops_its_own_mode(opened):
    with torch.device("meta"):
        made = torch.ones(2) * 2
        assert depth() == 2
    assert made.device.type == "meta"
    assert torch.ones(1).device.type == "cpu"
    assert (depth(), opened.capture.window.on) == (1, True)


def test_a_root_within_a_device_context(opened, model):
    with torch.device("cpu"):
        out = model(torch.ones(2, 3))
        out.sum().backward()
        assert opened.capture.window.on
    assert depth() == 1
    opened.capture.window.close()
    assert depth() == 0


def test_the_default_device(work, model):
    work()
    torch.set_default_device("cpu")
    try:
        model(torch.ones(2, 3)).sum().backward()
        assert depth() == 2
        assert torch.ones(1).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert depth() == 1


def test_the_default_device_is_taken_away_while_open(opened):
    torch.set_default_device("meta")
    assert torch.ones(1).device.type == "meta"
    torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"
    assert depth() == 1


def test_a_mode_of_the_scripts_own_sees_all_and_nothing_of_ours(work):
    def loop():
        model = nn.Linear(3, 3)
        with Counting() as mode:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                loss = model(torch.ones(2, 3)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return mode.names

    plain = loop()
    work()
    watched = loop()
    assert watched == plain
    assert depth() == 1


def test_nested_modes_are_put_back_in_order(opened, model):
    outer, inner = Counting(), Counting()
    with outer:
        model(torch.ones(2, 3)).sum().backward()
        with inner:
            (model(torch.ones(2, 3)) * 2).sum().backward()
            assert torch._C._get_function_stack_at(depth() - 1) is inner
        assert torch._C._get_function_stack_at(depth() - 1) is outer
    assert depth() == 1


def test_an_exception_within(opened, model):
    with contextlib.suppress(ZeroDivisionError), Counting():
        model(torch.ones(2, 3)).sum().backward()
        raise ZeroDivisionError
    assert depth() == 1
    with pytest.raises(RuntimeError):
        opened.output @ torch.ones(7)
    assert (depth(), opened.capture.window.on) == (1, True)
    assert opened.events(ProbeDark) == []


def test_a_tensor_that_is_given_sparse_memory_switches_nothing_off(opened):
    """It has no number of bytes."""
    mask = torch.zeros(3, 3).to_sparse()
    mask.data = torch.eye(3).to_sparse() * 2.0
    assert mask.to_dense().equal(torch.eye(3) * 2.0)
    assert opened.events(ProbeDark) == []


def test_a_forward_that_raised_and_was_caught(work):
    """It made nothing, so nothing of it is run again."""
    worker = work()

    class Fussy(nn.Linear):
        def forward(self, x):
            if x.shape[0] != 2:
                raise ValueError("fussy")
            return super().forward(x)

    model = Fussy(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="fussy"):
        model(torch.ones(1, 3))
    loss = (model(torch.ones(2, 3)).square().mean() * 0).log()
    loss.backward()
    optimizer.step()
    assert [(looked.outcome, looked.site and looked.site.op) for looked in worker.looked[:1]] == [
        ("found", "aten.log.default")
    ]


class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def rows_written(given):
    rows = torch.empty(3)
    rows.copy_(given)
    rows[0] = given.sum()
    rows[1:].fill_(torch.tensor(-math.inf))
    return rows.add_(1.0)


def counted():
    with Ops() as mode, torch.no_grad():
        rows_written(torch.ones(3))
    return mode.names


def traced():
    return make_fx(rows_written)(torch.ones(3)).code


def transformed():
    def body(row):
        rows = torch.zeros_like(row)
        rows[0] = row.sum()
        return rows.mul_(2.0)

    return torch.func.vmap(body)(torch.arange(6.0).view(2, 3)).tolist()


@pytest.mark.parametrize("look", [counted, traced, transformed])
def test_what_is_looked_at_before_a_write_is_unseen_by_the_scripts_own_modes(work, look):
    plain = look()
    worker = work()
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(3):
        layer(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        assert worker.capture.window.on
        assert look() == plain
    assert "window" not in RECORDER.darkened

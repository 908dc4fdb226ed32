"""A replay happens behind the script's back: its modes see no call of ours, and nothing of the step outlives it."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.events import Looked


class Functions(TorchFunctionMode):
    """As a script counts its calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    """As a script counts its ops."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Script:
    """Trains; its second step is bad."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.held = []

    def step(self, size):
        mine = nn.Identity()
        self.held.append(weakref.ref(mine))
        self.optimizer.zero_grad()
        loss = self.model(torch.full((3, 4), 2.0)).sum() * torch.tensor(size).log()
        loss.backward()
        self.optimizer.step()

    def bad_step(self, mode):
        self.step(2.0)
        with mode:
            self.step(-2.0)
        return mode.seen


def without_property_reads(seen):
    return [one for one in seen if one not in {"__get__", "_set_grad_enabled"}]


@pytest.mark.parametrize("mode", [Functions, Ops])
def test_a_mode_of_the_script_sees_what_it_would_have_seen(mode, work):
    plain = Script().bad_step(mode())
    worker = work()
    seen = Script().bad_step(mode())
    assert worker.looked
    assert without_property_reads(seen) == without_property_reads(plain)


def test_nothing_of_the_step_waits_for_the_garbage_collector(work):
    worker, script = work(), Script()
    gc.collect()
    gc.disable()
    try:
        for size in (2.0, -2.0, 2.0):
            script.step(size)
        assert [one.outcome for one in worker.events(Looked)][:1] == ["found"]
        assert [one() for one in script.held] == [None, None, None]
    finally:
        gc.enable()


def test_what_the_loop_computed_and_gave_a_loss_to_keep_has_its_line(work):
    worker, model = work(), nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        y = torch.ones(6, 3)
        y[:3] = 0.0
        if step == 2:
            y[:, 1] = 0.0
        positive = y.sum(0)
        weight = (len(y) - positive) / positive  # where none is
        loss = nn.BCEWithLogitsLoss(pos_weight=weight)(model(torch.rand(6, 4)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.step, looked.source, looked.site.op) == (2, "op", "aten.div.Tensor"), looked
    assert looked.site.source.endswith("# where none is")

"""Modes of the script's own round its training: the line is the script's, and they count as without a replay."""

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from nandiag.events import Looked, ProbeDark
from nandiag.runtime.memory.packing import packing
from nandiag.runtime.tape.state import modes


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Spoils(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        return output / (output - output) if getattr(func, "__name__", "") == "square" else output


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def train(mode, wrap=lambda x: x, bad=3, steps=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mode:
        for step in range(steps):
            x = wrap(torch.ones(2, 4) * (step != bad))
            unit = x / x.norm(dim=1, keepdim=True)
            loss = model(unit).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return mode


def found(worker):
    assert worker.events(ProbeDark) == []
    return next((look for look in worker.events(Looked) if look.outcome == "found"), None)


@pytest.mark.parametrize("mode", [Functions, Dispatched])
def test_the_line_is_that_of_the_call_which_the_mode_was_handed(work, mode):
    worker = work()
    train(mode())
    look = found(worker)
    assert (look.step, look.site.op, look.site.function) == (3, "aten.div.Tensor", "train")
    assert look.site.source.strip() == "unit = x / x.norm(dim=1, keepdim=True)"


def test_the_line_is_that_of_the_call_which_a_class_of_tensors_was_handed(work):
    worker = work()
    train(Functions(), wrap=lambda x: x.as_subclass(Wrapped))
    assert found(worker).site.source.strip() == "unit = x / x.norm(dim=1, keepdim=True)"


def test_what_a_mode_itself_makes_bad_has_its_line(work):
    worker = work()
    train(Spoils(), bad=None)
    assert (found(worker).site.function, found(worker).site.op) == ("__torch_function__", "aten.div.Tensor")


@pytest.mark.parametrize("mode", [Functions, Dispatched])
def test_what_a_mode_counts_is_as_without_a_replay(work, mode):
    plain = train(mode()).calls
    worker = work()
    assert train(mode()).calls == plain
    assert found(worker) is not None


def test_a_counter_of_torchs_counts_no_replay(work):
    plain = train(FlopCounterMode(display=False)).get_total_flops()
    worker = work()
    assert train(FlopCounterMode(display=False)).get_total_flops() == plain
    assert worker.events(ProbeDark) == []


def test_fake_tensors_are_not_taped(work):
    worker = work()
    with FakeTensorMode():
        nn.Linear(4, 1)(torch.ones(2, 4)).sum()
    assert worker.capture.tape.entries == []
    assert worker.events(ProbeDark) == []


def narrow(tensor):
    return tensor.half() if tensor.dtype is torch.float32 else tensor


def packed_by(hooks, bad=3):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for step in range(bad + 2):
        x = torch.ones(2, 4) * (1e5 if step == bad else 1.0)
        with hooks():
            loss = model(x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_what_the_script_packs_for_backward_is_packed_again(work):
    worker = work()
    packed_by(lambda: saved_tensors_hooks(narrow, torch.Tensor.float))
    looked = worker.looked[0]
    assert (looked.outcome, looked.step, looked.site.op) == ("found", 3, "aten._to_copy.default"), looked
    assert looked.site.line == narrow.__code__.co_firstlineno + 1


def test_hooks_that_saved_tensors_have_no_more_are_forgotten(work):
    work()
    with saved_tensors_hooks(narrow, torch.Tensor.float) as _, save_on_cpu():
        inner = packing()
    assert inner is not None
    assert inner[0] is not narrow
    assert packing() is None
    assert modes()[-1] is None


def test_hooks_of_another_thread_or_of_checkpointing_are_none_of_the_steps(work):
    work()
    seen, ready, done = [], threading.Event(), threading.Event()

    def elsewhere():
        with saved_tensors_hooks(narrow, torch.Tensor.float):
            ready.set()
            done.wait(10)

    other = threading.Thread(target=elsewhere)
    other.start()
    ready.wait(10)
    seen.append(packing())
    done.set()
    other.join()

    def inside(x):
        seen.append(packing())
        return x.sin()

    checkpoint(inside, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    assert seen == [None, None, None]  # beside the thread, in the first run, in the second


def test_an_error_of_ours_leaves_the_hooks_of_the_script_in_place(work, monkeypatch):
    worker = work()
    monkeypatch.setattr("nandiag.runtime.memory.packing.HOOKS", None)
    weight = torch.ones(2, requires_grad=True)
    with saved_tensors_hooks(narrow, torch.Tensor.float):
        loss = (weight * weight).sum()
    loss.backward()
    assert weight.grad.tolist() == [2.0, 2.0]
    assert {one.probe for one in worker.events(ProbeDark)} == {"tape"}


class Casting(nn.Module):
    def __init__(self, *, on):
        super().__init__()
        self.layer, self.on = nn.Linear(4, 1), on

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.on):
            return (self.layer(x).float() - 1e30).square().square()


@pytest.mark.parametrize("on", [True, False])
def test_autocast_is_seen_where_the_model_asks_for_it_itself(work, on):
    worker, model = work(), Casting(on=on)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert worker.looked[0].facts["autocast"] is on, worker.looked

"""A fault in any hook of ours leaves the training as it is, and nothing is held."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from nandiag.events import Note, ProbeDark
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.capture import Capture
from nandiag.runtime.watch.sentinel import Sentinel
from tests.unit.runtime.watch.looping import Loop, at, bad_gradient

PROBES = {
    "before_step": Sentinel, "after_step": Sentinel, "backward_begins": Sentinel, "backward_ended": Sentinel,
    "gradients_dropped": Sentinel, "root_begins": Capture, "root_ends": Capture, "backward_ends": Capture,
    "step_ends": Capture,
}  # fmt: skip


def breaks(*_, **__):
    raise ZeroDivisionError("a fault of ours")


@pytest.mark.parametrize("name", PROBES)
def test_a_fault_in_any_hook_of_ours_leaves_the_training_as_it_is(name, work, monkeypatch):
    torch.manual_seed(1)
    plain = Loop(torch.optim.Adam).run(4).bits
    inner = {"root_begins": "_habit", "root_ends": None, "backward_ends": None, "step_ends": "_keep_to_budget"}
    if name == "root_ends":
        monkeypatch.setattr("nandiag.runtime.tape.entries.Tape.made", breaks)
    elif name == "backward_ends":
        monkeypatch.setattr("nandiag.runtime.tape.loop.window.Window.open", breaks)
    else:
        monkeypatch.setattr(PROBES[name], inner.get(name, name), breaks)
    worker = work()
    torch.manual_seed(1)
    assert Loop(torch.optim.Adam).run(4).bits == plain
    assert worker.events(ProbeDark)[0].reason.startswith("ZeroDivisionError: a fault of ours")
    assert torch._C._len_torch_function_stack() == 0 or worker.capture.window.on


def test_a_full_disk_leaves_the_training_as_it_is(work, monkeypatch):
    torch.manual_seed(1)
    plain = Loop().run(4, spoil=at(1, bad_gradient)).bits
    work()
    monkeypatch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    torch.manual_seed(1)
    watched = Loop().run(4, spoil=at(1, bad_gradient)).bits
    monkeypatch.undo()
    assert watched == plain


def test_a_mute_process_is_not_watched(work):
    worker = work()
    RECORDER.mute = True
    Loop().run(2, spoil=bad_gradient)
    RECORDER.mute = False
    assert worker.harms == []


def test_notes_are_not_needed_for_a_clean_run(work):
    worker = work()
    Loop().run(3)
    worker.sentinel.finish()
    assert worker.events(Note) == []


def test_a_scripted_module_beside_the_model_disarms_nothing(work):
    worker = work()
    scripted = torch.jit.script(torch.nn.BatchNorm1d(3))
    Loop().run(3, loss_of=lambda loop, out: out.mean() * (math.nan if loop.step == 1 else 1))
    assert worker.events(ProbeDark) == []
    assert worker.harms[0].step == 1
    del scripted


class Around(torch.optim.Optimizer):
    """Steps another optimizer in its own step."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self):
        self.inner.step()


@pytest.mark.parametrize("around", [False, True])
def test_a_model_that_the_script_lets_go_of_is_gone_with_its_optimizer(work, around):
    worker = work()

    def fold():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer = Around(optimizer) if around else optimizer
        for _ in range(2):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)

    left = fold()
    gc.collect()
    assert [one() for one in left] == [None, None, None]
    assert worker.sentinel.finish().steps == 2

"""The window lies below the script's own modes, steps aside where it must, and leaves no trace of itself."""

import json
import os
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from nandiag.runtime.births.known import is_in_place
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.loop import budget
from nandiag.runtime.tape.loop.traits import traits
from nandiag.runtime.tape.loop.window import Window
from tests.unit.runtime.tape.opening import depth, names

# ---------------------------------------------------------------------- before the first step


def test_it_opens_when_an_optimizer_is_made_and_what_precedes_a_module_is_let_go(work, model):
    worker = work()
    assert not worker.capture.window.on
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert worker.capture.window.on
    held = torch.zeros(3)
    held.add_(1)
    (model.weight * 2).sum()
    assert {"add_", "mul"} <= {name.strip("_") + "_" * name.endswith("_") for name in names(worker.capture)}
    model(held)
    assert names(worker.capture) == ["Linear"]


def test_it_closes_where_setting_up_makes_more_calls_than_can_be_seen(work, model):
    worker = work()
    torch.optim.SGD(model.parameters(), lr=0.1)
    record = worker.capture.births.record
    record.spent += 1e6
    torch.zeros(3).add_(1)
    torch.zeros(3).add_(1)
    assert not worker.capture.window.on
    model(torch.ones(3))
    assert worker.capture.window.on


# ---------------------------------------------------------------------- where it steps aside


def test_a_loader_and_zero_grad_are_not_taped(opened, model):
    before = opened.capture.window.calls
    list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 3)), batch_size=4))
    taken = opened.capture.window.calls - before
    assert taken < 20
    opened.optimizer.zero_grad()
    assert opened.capture.window.calls - before == taken
    assert opened.capture.window.on


def test_another_thread_is_not_taped(opened, model):
    seen = []

    def work():
        model(torch.ones(2, 3)).sum().backward()
        seen.append(opened.capture.window in _get_current_function_mode_stack())

    model(torch.ones(2, 3)).sum().backward()
    entries = names(opened.capture)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert names(opened.capture) == entries


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_left_alone(opened):
    """A worker of a DataLoader is forked from the middle of the loop: it must tape nothing."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for _ in range(5):
                torch.ones(2) * 2
            os.write(writer, json.dumps([depth(), opened.capture.window.calls]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    calls = opened.capture.window.calls
    with os.fdopen(reader) as pipe:
        assert json.loads(pipe.read()) == [0, calls]
    assert opened.capture.window.on


def test_a_fault_of_ours_closes_it_for_good(opened, model, monkeypatch):
    def breaks(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Tape, "add", breaks)
    assert torch.equal(torch.ones(2) + opened.output.detach().sum() * 0, torch.ones(2))
    model(torch.ones(2, 3)).sum().backward()
    assert not opened.capture.window.on
    assert depth() == 0
    assert RECORDER.is_dark("window") or RECORDER.is_dark("tape")


def test_a_warning_keeps_the_scripts_line(opened):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.norm(torch.ones(2, 2), p="nuc") if False else torch.cross(torch.ones(3), torch.ones(3))
    assert {one.filename for one in caught} <= {__file__}


# ---------------------------------------------------------------------- what it tapes


@pytest.mark.parametrize(
    ("name", "writes"),
    [("add_", True), ("add", False), ("__iadd__", True), ("__setitem__", True), ("__getitem__", False),
     ("zero_", True), ("__mul__", False)],
)  # fmt: skip
def test_what_writes_in_place_by_its_name(name, writes):
    assert is_in_place(name) is writes


def test_traits():
    assert traits(torch.Tensor.grad.__set__).mutates
    assert not traits(torch.Tensor.data.__set__).mutates
    assert traits(torch.Tensor.register_hook).mutates
    assert traits(torch.Tensor.mul_).in_place
    assert traits(torch.rand_like).random
    assert traits(torch.nn.functional.dropout).random
    assert not traits(torch.mul).random


def test_a_custom_function_and_autograd_grad_are_one_entry(opened):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 2

        @staticmethod
        def backward(_, gradient):
            return gradient * 2

    before = len(names(opened.capture))
    doubled = Double.apply(opened.output)
    assert len(names(opened.capture)) == before + 1
    torch.autograd.grad(doubled.sum(), opened.output)
    assert names(opened.capture)[-1] == "grad"
    assert opened.capture.window.on


def test_the_named_tuples_of_torch_are_outputs(opened):
    """``x.max(1)``, ``topk``, ``eigh``: what comes of them can be made again."""
    best = opened.output.max(1)
    size, turn = torch.linalg.eigh(opened.output.T @ opened.output)
    for tensor in (best.values, best.indices, size, turn):
        made_by = opened.capture.tape.maker(tensor)
        assert made_by is not None
        assert made_by[0].name in {"max", "linalg_eigh"}
    assert opened.output.shape == (2, 3)
    assert "size" not in names(opened.capture)


def test_the_line_of_each_call_is_kept(opened):
    opened.output.square()
    frame = opened.capture.tape.whole()[-1].frames[0]
    assert (frame.file, frame.code.co_name) == (__file__, "test_the_line_of_each_call_is_kept")


@pytest.fixture
def calls_are_dear(monkeypatch):
    """A step that lasts long, as any does on a busy machine, is allowed more calls than this loop makes."""
    monkeypatch.setattr(budget, "_SHARE", 0.0)
    monkeypatch.setattr(budget, "_ALLOWED", 0.0)


def test_the_start_of_a_run_is_taped_whole(work, model, monkeypatch):
    """What is left out to save time is left out of runs that last."""
    monkeypatch.setattr(budget, "_SHARE", 0.0)
    monkeypatch.setattr(budget, "_ALLOWED", 20 * 400 * budget._CALL_SECONDS)
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    narrow = []
    for _ in range(12):
        busy(400, model, optimizer)
        narrow.append(worker.capture.narrow)
    assert narrow == [False] * narrow.count(False) + [True] * narrow.count(True)
    assert 3 < narrow.count(False) < 12


@pytest.mark.usefixtures("calls_are_dear")
def test_a_loop_that_makes_too_many_calls_is_narrowed_and_widened(work, model):
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for _ in range(400):
            torch.ones(2) + 1
        loss = model(torch.ones(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert worker.capture.narrow
    assert not worker.capture.window.on
    worker.capture.widen()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    assert worker.capture.window.on


@pytest.mark.usefixtures("calls_are_dear")
def test_an_optimizer_for_each_weight_makes_no_step_of_few_calls_of_it(work, model):
    """As pyro's, whose newest update but one ends the step in which all the calls were made."""
    worker = work()
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in model.parameters()]
    for _ in range(5):
        for _ in range(400):
            torch.ones(2) + 1
        model(torch.ones(2, 3)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert worker.capture.narrow


def busy(calls, model, optimizer):
    for _ in range(calls):
        torch.ones(2) + 1
    loss = model(torch.ones(2, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.usefixtures("calls_are_dear")
@pytest.mark.parametrize("calls", [0, 400])
def test_a_loop_is_taped_whole_again_when_it_makes_few_calls_again(work, model, calls):
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        busy(400, model, optimizer)
    assert worker.capture.narrow
    narrow = []
    for _ in range(40):
        busy(calls, model, optimizer)
        narrow.append(worker.capture.narrow)
    assert narrow.count(False) == (26 if calls == 0 else 1), narrow
    assert narrow[-1] is bool(calls)


def test_a_window_of_its_own():
    window = Window(Tape())
    assert window.close() is False
    window.open()
    window.open()
    assert depth() == 1
    assert window.close() is True
    assert depth() == 0


def test_a_long_chain_without_gradients_on_which_a_loss_depends_is_held(opened):
    with torch.no_grad():
        value = torch.ones(3)
        for _ in range(1500):
            value = value.neg()
    loss = (opened.output * value).sum()
    assert not RECORDER.is_dark("window")
    maker, _ = opened.capture.tape.maker(loss)
    held = opened.capture.tape.whole([loss])
    assert maker in held
    assert sum(entry.name == "neg" and entry.held for entry in held) >= 1500


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.ones(3), torch.tensor([float("nan") if index == 4 else 1.0])


def test_a_bad_target_is_traced_to_its_sample_though_no_module_was_given_it(work, model):
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in torch.utils.data.DataLoader(Pairs(), 3):
        loss = nn.functional.mse_loss(model(inputs), targets.expand(-1, 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    looked = worker.looked[0]
    assert (looked.phase, looked.step) == ("data", 1)
    assert (looked.facts["dataset"], looked.facts["dataset_index"]) == ("Pairs", 4)


def test_a_chain_of_fresh_leaves_is_made_again_from_the_first_step_on(work, model):
    worker = work()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    point = torch.ones(2, 3)
    for _ in range(3):  # a sampler that walks along the model's own gradient
        point = point.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(point).sum(), point)
        point = point * 1e20 - slope
    loss = model(point.detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert worker.looked[0].outcome == "found"
    assert worker.looked[0].site.op == "aten.mul.Tensor"


def test_what_returns_a_named_tuple_is_taped(opened):
    values, _ = opened.output.max(dim=-1)
    assert [entry.name for entry in opened.capture.tape.whole([values])] == ["Linear", "max"]


FORMS = [
    lambda x: x.shape, lambda x: x.ndim, lambda x: x.dtype, lambda x: x.device, lambda x: x.requires_grad,
    lambda x: x.is_leaf, lambda x: x.dim(), lambda x: x.size(0), lambda x: x.stride(), lambda x: x.numel(), len,
    lambda x: x.is_contiguous(), lambda x: x.is_floating_point(), torch.is_complex, torch.numel,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_a_tensor_is_tells_no_value(opened, form, monkeypatch):
    """It is no answer to what the script asked of its numbers, and costs but the way through."""
    window, read, x = opened.capture.window, [], torch.ones(2, 2)
    monkeypatch.setattr(window, "_take_it", lambda *words: read.append(words))
    form(x)
    assert read == []
    x.sum().item()
    assert read


def test_a_value_is_none_of_what_a_tensor_is(opened):
    assert not any(
        traits(one).of_form for one in (Tensor.item, Tensor.__bool__, Tensor.grad.__get__, Tensor.data.__get__)
    )


def test_a_model_that_is_built_by_initialisers_that_a_library_has_put_in_the_place_of_torchs(opened, monkeypatch):
    """Torch hands them on by name alone, as if they were its own."""
    original = nn.init.normal_

    def normal_(tensor, mean=0.0, std=1.0, generator=None):
        return original(tensor, mean=mean, std=std, generator=generator)

    monkeypatch.setattr(nn.init, "normal_", normal_)
    made = nn.Embedding(3, 4)
    nn.init.normal_(made.weight)
    assert not RECORDER.darkened
    assert opened.capture.tape.maker(made.weight) is None  # it is taken as it is

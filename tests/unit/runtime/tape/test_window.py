"""The window lies below the script's own modes, steps aside where it must, and leaves no trace of itself."""

import contextlib
import json
import math
import os
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from nandiag.events import ProbeDark
from nandiag.runtime.collectives import own_part
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.tape import exchange, window
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.window import Window, is_in_place, traits


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def depth():
    return torch._C._len_torch_function_stack()


def names(capture):
    return [entry.name for entry in capture.tape.whole()]


@pytest.fixture
def model():
    return nn.Linear(3, 3)


@pytest.fixture
def opened(work, model):
    """An armed worker whose window is open: a root module has run."""
    worker = work()
    worker.capture.training()
    worker.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker.output = model(torch.ones(2, 3))
    assert worker.capture.window.on
    assert depth() == 1
    return worker


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


# ---------------------------------------------------------------------- modes of the script's own


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
    monkeypatch.setattr(window, "_SHARE", 0.0)


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
            value = value.flatten()
    loss = (opened.output * value).sum()
    assert not RECORDER.is_dark("window")
    maker, _ = opened.capture.tape.maker(loss)
    held = opened.capture.tape.whole([loss])
    assert maker in held
    assert sum(entry.name == "flatten" and entry.held for entry in held) >= 1500


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


def ended(opened, name, *args, **kwargs):
    """A collective of the script's has returned."""
    exchange._ended(opened.capture, name, args, kwargs, sys._getframe(1))


@pytest.mark.parametrize("name", ["all_gather", "recv"])
def test_what_other_ranks_wrote_is_given_whichever_call_made_the_memory(opened, name):
    target = torch.zeros(2, 3)
    assert opened.capture.tape.maker(target) is not None
    ended(opened, name, [target] if name == "all_gather" else target)
    assert opened.capture.tape.maker(target) is None
    assert target.untyped_storage()._cdata in opened.capture.received


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("gather", ["mine", "theirs"], {}), ("gather", ["mine"], {"gather_list": "theirs"}),
        ("gather", [], {"tensor": "mine", "gather_list": "theirs"}),
        ("all_gather", [], {"tensor": "mine", "tensor_list": "theirs"}),
        ("scatter", ["theirs", "mine"], {}), ("reduce_scatter_tensor", ["theirs", "mine"], {}),
        ("reduce_scatter", [], {"output": "theirs", "input_list": "mine"}),
    ],
)  # fmt: skip
def test_what_a_rank_puts_in_is_not_what_it_was_given(opened, name, args, kwargs):
    tensors = {"mine": torch.zeros(2, 3), "theirs": torch.zeros(2, 3)}
    words = {"mine": tensors["mine"], "theirs": [tensors["theirs"]]}
    ended(opened, name, *(words[one] for one in args), **{key: words[one] for key, one in kwargs.items()})
    assert opened.capture.tape.maker(tensors["mine"]) is not None
    assert opened.capture.tape.maker(tensors["theirs"]) is None


@pytest.mark.parametrize(("mine", "outcome"), [(1.0, 5.0), (math.nan, math.nan)])
def test_a_reduction_in_the_loss_code_gives_what_the_ranks_made_of_it_but_hides_no_fault_of_this_one(
    opened, mine, outcome
):
    count = opened.output.detach().sum() * 0
    with torch._C.DisableTorchFunction():
        count.fill_(5.0)  # what the reduction wrote
    ended(opened, "all_reduce", count)
    maker, _ = opened.capture.tape.maker(count)
    assert maker.name == "all_reduce"
    assert maker.function(torch.tensor(mine)).item() == pytest.approx(outcome, nan_ok=True)


@pytest.fixture
def second_of_two(monkeypatch):
    """This rank is the second of two, and has just called the collective that is told: ``call(name)``."""
    monkeypatch.setattr(own_part.dist, "get_rank", lambda: 7)

    def call(name):
        newest = SimpleNamespace(op=name, group=SimpleNamespace(members=(3, 7)))
        monkeypatch.setattr(own_part, "RING", SimpleNamespace(newest=lambda: newest))

    return call


@pytest.mark.parametrize(
    ("name", "shapes", "at"),
    [
        ("all_gather", [[(3,), (3,)], (3,)], 1), ("all_gather_into_tensor", [(6,), (3,)], slice(3, 6)),
        ("scatter", [(3,), [(3,), (3,)]], slice(0, 3)), ("reduce_scatter", [(3,), [(3,), (3,)]], slice(0, 3)),
        ("reduce_scatter_tensor", [(3,), (6,)], slice(0, 3)), ("all_to_all", [[(3,), (3,)], [(3,), (3,)]], 1),
        ("all_to_all_single", [(6,), (6,)], slice(3, 6)),
    ],
)  # fmt: skip
def test_what_a_rank_gets_back_of_its_own_leads_to_what_it_put_in(opened, second_of_two, name, shapes, at):
    def made(shape):
        return [made(one) for one in shape] if isinstance(shape, list) else opened.output.new_zeros(shape)

    given = [made(shape) for shape in shapes]
    second_of_two(name)
    ended(opened, name, *given)
    written = given[0][1] if isinstance(given[0], list) else given[0]
    maker, _ = opened.capture.tape.maker(written)
    assert maker.name == name
    put = given[1][1] if isinstance(given[1], list) else given[1]
    assert not maker.function(put).isnan().any()
    bad = maker.function(torch.full_like(put, math.nan))
    found = bad if isinstance(at, int) else bad[at]
    assert found.isnan().all()
    assert int(bad.isnan().sum()) == found.numel()
    if isinstance(given[0], list):
        assert opened.capture.tape.maker(given[0][0]) is None
        assert given[0][0].untyped_storage()._cdata in opened.capture.received
        assert written.untyped_storage()._cdata not in opened.capture.received


def test_parts_of_sizes_of_their_own_are_all_taken_for_received(opened, second_of_two):
    given = [opened.output.new_zeros(6), opened.output.new_zeros(6)]
    second_of_two("all_to_all_single")
    ended(opened, "all_to_all_single", *given, [2, 4], [2, 4])
    assert opened.capture.tape.maker(given[0]) is None


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

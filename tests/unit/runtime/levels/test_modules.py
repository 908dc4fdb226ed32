"""``--level module``: which module is named, that masks are not, and that the host is asked at a border alone."""

import math
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from nandiag.events import Activations, Looked, Note
from nandiag.runtime.look.extremes import Extremes, Look

STEPS = 4
BAD = 2
LARGE = 1 << 13


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Output:
    logits: torch.Tensor
    extra: object = None


class Breaks(nn.Module):
    """Puts out ``made(x)`` in one call, in ``wrapped`` form; its counter makes a replay go another way."""

    def __init__(self, made, wrapped=lambda x: x):
        super().__init__()
        self.made, self.wrapped, self.calls = made, wrapped, [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.wrapped(self.made(x) if self.calls[0] == BAD + 1 else x)


class Net(nn.Module):
    def __init__(self, breaks, unwrapped=lambda x: x):
        super().__init__()
        self.stem, self.breaks, self.head = nn.Linear(4, 8), breaks, nn.Linear(8, 2)
        self.unwrapped = unwrapped

    def forward(self, x):
        return self.head(self.unwrapped(self.breaks(self.stem(x))))


def train(model, *, loss_of=lambda out: out.square().mean(), steps=STEPS, data=torch.randn):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(data(3, 4))).backward()
        optimizer.step()


def nan(x):
    return torch.where(torch.arange(x.shape[-1]) == 1, (x - x) / (x - x), x)


def found(worker):
    looked = [one for one in worker.looked if one.outcome == "found"]
    return looked[0] if looked else None


@pytest.mark.parametrize(
    ("wrapped", "unwrapped"),
    [
        (lambda x: x, lambda x: x),
        (lambda x: {"deep": [x]}, lambda x: x["deep"][0]),
        (lambda x: Pair(1, x), lambda x: x.right),
        (Output, lambda x: x.logits),
        (lambda x: (x, None, 3), lambda x: x[0]),
    ],
    ids=["tensor", "dict", "namedtuple", "dataclass", "tuple"],
)
def test_the_module_is_named_wherever_its_output_sits(work, wrapped, unwrapped):
    worker = work(level="module", max_replays=0)
    train(Net(Breaks(nan, wrapped), unwrapped))
    look = found(worker)
    assert (look.method, look.source, look.step, look.phase) == ("watch", "module", BAD, "forward")
    assert (look.site.module, look.site.module_class) == ("breaks", "Breaks")
    assert look.outputs[0].nan == 3
    assert look.outputs[0].first_bad == (0, 1)
    assert not look.inputs[0].bad
    assert look.facts["bad_modules"] == ["head", ""]


def test_at_the_step_level_nothing_runs_per_module(work):
    before = nn.Module.__call__
    worker = work(max_replays=0)
    assert nn.Module.__call__.__wrapped__ is before  # the tape's own wrap, and no other
    train(Net(Breaks(nan)))
    assert worker.looked == []


def test_a_replay_that_finds_the_op_goes_first(work):
    worker = work(level="module")
    model = Net(nn.Identity())
    train(model, loss_of=lambda out: (out - out).log().mean(), steps=1)
    assert {one.method for one in worker.looked} == {"replay"}


def test_a_minus_infinity_that_becomes_nan_is_traced_to_its_module(work):
    worker = work(level="module", max_replays=0)
    train(Net(Breaks(lambda x: (x * 0).log())))
    assert found(worker).site.module == "breaks"


def test_a_mask_inside_is_no_origin(work):
    """The mask's module puts out -Inf each step; what is named is the code that broke."""

    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(torch.arange(8) > 5, -torch.inf)

    class Softmax(nn.Module):
        def forward(self, x):
            return x.softmax(-1)

    worker = work(level="module", max_replays=0)
    train(Net(nn.Sequential(Masked(), Softmax(), Breaks(nan))))
    assert found(worker).site.module == "breaks.2"


def test_bad_values_that_the_root_dealt_with_are_passed_over(work):
    class Guarded(Net):
        def forward(self, x):
            return self.head(self.breaks(self.stem(x)).nan_to_num())

    worker = work(level="module", max_replays=0)
    train(Guarded(Breaks(nan)), loss_of=lambda out: (out - out).log().mean(), steps=BAD + 1)
    assert found(worker) is None


def test_a_bad_batch_is_data(work):
    worker = work(level="module", max_replays=0)
    train(Net(nn.Identity()), data=lambda *shape: torch.full(shape, torch.nan), steps=1)
    look = found(worker)
    assert (look.source, look.phase, look.site.module) == ("input", "data", "")


def test_a_clean_run_keeps_the_history_of_maxima(work):
    worker = work(level="module")
    train(Net(nn.Identity()))
    worker.sentinel.finish()
    event = worker.sentinel.looker.last_words()
    assert isinstance(event, Activations)
    assert event.step == tuple(range(STEPS))
    assert set(event.module) == {"stem", "breaks", "head", ""}
    assert all(len(values) == STEPS and all(one > 0 for one in values) for values in event.absmax)
    assert worker.events(Looked, Note) == []


def test_threads_do_not_mix_up_their_calls(work):
    worker = work(level="module", max_replays=0)
    models = [Net(nn.Identity()) for _ in range(4)]

    def many(model):
        for _ in range(20):
            model(torch.randn(3, 4))

    threads = [threading.Thread(target=many, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = worker.sentinel.looker.modules._calls
    assert len(calls) == 4 * 20 * 4
    assert {type(one.root.module) for one in calls} == {Net}
    assert all(one.root.module in models for one in calls)


def test_what_is_not_on_the_cpu_waits_until_it_is_read(monkeypatch):
    """Stands in for a GPU: nothing may be asked of the values before ``read``."""
    extremes = Extremes()
    low, high = torch.tensor(-1.0), torch.tensor(torch.inf)
    look = Look(torch.ones(2))
    extremes._waiting.append((look, low, high))
    assert look.finite
    assert not look.known
    extremes.read()
    assert (look.low, look.high, look.known) == (-1.0, torch.inf, True)
    fact = look.told("x")
    assert (fact.posinf, fact.counted, fact.name) == (1, False, "x")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("value", "kind"), [(torch.nan, "nan"), (torch.inf, "posinf"), (-torch.inf, "neginf")])
def test_each_kind_is_told_from_the_others(dtype, value, kind):
    x = torch.ones(5, dtype=dtype)
    x[3] = value
    look = Extremes().look(x)
    assert not look.finite
    assert look.masked == (kind == "neginf")
    assert getattr(look.told(), kind) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("usual", [math.inf, 1.0, -1.0])
def test_a_large_tensor_that_is_not_finite_is_measured_whatever_its_usual_norm(dtype, value, usual):
    x = torch.ones(LARGE, dtype=dtype)
    x[3] = value
    look = Extremes().look(x, usual)
    assert look.known
    assert not look.finite
    assert look.masked == (value == -torch.inf)


def test_finite_values_whose_norm_overflows_are_finite():
    look = Extremes().look(torch.full((LARGE,), 1e30), 1.0)
    assert (look.known, look.finite) == (True, True)
    assert look.absmax == pytest.approx(1e30)


class Scales(nn.Module):
    """Gives back its input times ``by``."""

    by = 1.0

    def forward(self, x):
        return x * self.by


def test_large_outputs_are_measured_now_and_then_and_where_they_grew(work):
    worker = work(level="module")
    model, one = nn.Sequential(Scales()), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([one], lr=0.0)
    for step in range(11):
        model[0].by = 10.0 if step == 5 else 1.0
        (one * model(torch.ones(LARGE)).mean()).backward()
        optimizer.step()
    worker.sentinel.finish()
    event = worker.sentinel.looker.last_words()
    sizes = event.absmax[event.module.index("0")]
    assert sizes == (1.0, None, None, None, None, 10.0, None, None, 1.0, None, None)


def test_what_went_into_a_module_that_broke_is_told_though_it_was_not_measured(work):
    """Also where it is gone when harm is seen."""
    worker = work(level="module", max_replays=0)
    net = Net(Breaks(nan))
    net.stem, net.head = nn.Linear(4, LARGE), nn.Linear(LARGE, 2)
    train(net)
    fact = found(worker).inputs[0]
    assert (fact.shape, fact.nan, fact.counted) == ((3, LARGE), 0, True)
    assert fact.min < 0 < fact.max


def test_integers_and_empty_tensors_are_passed_over():
    extremes = Extremes()
    assert extremes.look(torch.arange(3)) is None
    assert extremes.look(torch.empty(0)) is None
    assert extremes.look(torch.empty(2, device="meta")) is None
    assert extremes.look(torch.ones(2, dtype=torch.complex64)).absmax == 1.0

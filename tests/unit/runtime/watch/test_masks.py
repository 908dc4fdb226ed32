"""What is infinite because it is meant so is no harm: -inf that the loop lays down, an extreme that begins at inf."""

import math

import pytest
import torch
from torch import nn


class Codes(nn.Module):
    """Chooses softly among codes, of which a bias rules some out."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 6)
        self.trained = nn.Parameter(torch.zeros(6))
        self.register_buffer("ruled_out", torch.zeros(6))

    def forward(self, x):
        return torch.softmax(self.score(x) + self.trained + self.ruled_out, -1)


def by_item(bias):
    bias[2:4] = float("-inf")


def by_fill(bias):
    bias[:3].fill_(-math.inf)


def by_mask(bias):
    bias.masked_fill_(torch.tensor([True, False] * 3), float("-inf"))


def by_mask_with_a_word(bias):
    bias.masked_fill_(torch.tensor([True, False] * 3), value=float("-inf"))


def by_index(bias):
    bias.index_fill_(0, torch.tensor([1, 3]), value=-math.inf)


def through_data(bias):
    bias.data[1] = -math.inf


def by_logarithm(bias):
    bias.copy_(torch.log(torch.tensor([0.5, 0.0] * 3)))


def with_nan(bias):
    bias[0] = float("-inf")
    bias[1] = float("nan")


def trained(write, name, steps=4):
    """Train, and ``write`` into the buffer or parameter ``name`` between two steps; returns the model."""
    torch.manual_seed(0)
    model = Codes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if step == 2:
            with torch.no_grad():
                write(getattr(model, name))
        loss = (model(torch.rand(5, 4)) * torch.arange(6.0)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize("name", ["trained", "ruled_out"])
@pytest.mark.parametrize("write", [by_item, by_fill, by_mask, by_mask_with_a_word, by_index, through_data])
def test_minus_infinity_that_the_loop_lays_down_is_a_mask(work, write, name, level):
    worker = work(on_anomaly="stop", level=level)
    model = trained(write, name)
    assert bool(getattr(model, name).isinf().any())
    assert worker.harms == []


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize("name", ["trained", "ruled_out"])
@pytest.mark.parametrize("write", [by_logarithm, with_nan])
def test_what_is_computed_or_nan_is_none(work, write, name, level):
    worker = work(on_anomaly="continue", level=level)
    trained(write, name)
    assert worker.harms


@pytest.mark.parametrize("name", ["trained", "ruled_out"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_turns_bad_beside_a_mask_is_told(work, name, value):
    def write(bias):
        bias[1] = -math.inf
        masked.append(bias)

    masked = []
    worker = work(on_anomaly="continue")
    model = trained(write, name)
    assert worker.harms == []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        with torch.no_grad():
            if step == 2:
                masked[0][4] = value
        loss = model.score(torch.rand(5, 4)).square().mean()  # which the mask is no part of
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [one.what for one in worker.harms] == ["parameter" if name == "trained" else "buffer"]


def test_what_turns_bad_beside_a_mask_that_was_there_from_the_start_is_told(work):
    worker = work(on_anomaly="continue")
    model = Codes()
    with torch.no_grad():
        by_item(model.trained)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if step == 3:
            with torch.no_grad():
                model.trained[4] = math.nan
        loss = model.score(torch.rand(5, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [(one.what, one.phase, one.step) for one in worker.harms] == [
        ("parameter", "init", 0),
        ("parameter", "optimizer", 3),
    ]


@pytest.mark.parametrize(("spoil", "harm"), [(by_item, False), (with_nan, True), (None, True)])
def test_a_mask_that_is_laid_where_the_loop_makes_too_many_calls_to_see_is_none(work, spoil, harm):
    worker = work(on_anomaly="continue")
    model = Codes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        worker.capture.narrow = True
        loss = (model(torch.rand(5, 4)) * torch.arange(6.0)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 3 and spoil is None:
            model.trained.grad[2] = 1e38  # with this rate the update itself makes -inf
            optimizer.param_groups[0]["lr"] = 1e3
        optimizer.step()
        if step == 2 and spoil is not None:
            with torch.no_grad():
                spoil(model.trained)
    assert bool(worker.harms) is harm


class Longer(nn.Module):
    """Attention whose mask is made within forward, for sequences longer than any before, or written into there."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.register_buffer("mask", torch.zeros(1, 1))
        self.register_buffer("closed", torch.zeros(6))

    def forward(self, x):
        length = x.shape[1]
        if length > len(self.mask):
            self.mask = torch.full((length, length), -math.inf).triu(1)
        self.closed[length:] = -math.inf
        self.closed[:length] = 0.0
        scores = self.query(x) @ x.transpose(1, 2) + self.mask[:length, :length] + self.closed[:length]
        return torch.softmax(scores, -1) @ x


def attended(spoil=None):
    torch.manual_seed(0)
    model = Longer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        loss = model(torch.rand(2, 1 + step // 2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 6 and spoil is not None:
            spoil(model)


def test_a_mask_that_forward_makes_or_writes_is_none(work):
    worker = work(on_anomaly="stop")
    attended()
    assert worker.harms == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_a_mask_may_turn_bad(work, value):
    worker = work(on_anomaly="continue")
    attended(lambda model: model.mask[1].fill_(value))
    assert any(one.what == "buffer" and "mask" in one.tensors[0].name for one in worker.harms)


def begun_anew(buffer):
    buffer.low.fill_(math.inf)
    buffer.high.copy_(torch.tensor(-math.inf))
    buffer.least = torch.full((2,), math.inf)


def overflown(buffer):
    buffer.least = torch.full((2,), 1e38) * 10


class Extremes(nn.Module):
    """Keeps the least and the largest number of those that it was given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        for name in ("low", "high", "least"):
            self.register_buffer(name, torch.zeros(2))

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(("write", "harm"), [(begun_anew, False), (overflown, True)])
def test_an_extreme_that_the_loop_begins_anew_is_none(work, write, harm):
    worker = work(on_anomaly="continue")
    model = Extremes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.rand(5, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            write(model)
    assert bool(worker.harms) is harm


class Least(torch.optim.Optimizer):
    """Keeps the least size of gradients seen, which begins ``at``."""

    def __init__(self, parameters, at):
        super().__init__(parameters, {})
        for one in self.param_groups[0]["params"]:
            self.state[one]["least"] = torch.full((2,), at)

    @torch.no_grad()
    def step(self):
        for one in self.param_groups[0]["params"]:
            state = self.state[one]
            state["least"][0] = torch.minimum(state["least"][0], one.grad.norm())
            one.sub_(one.grad, alpha=0.01)


class Ruling(Codes):
    """Rules codes out by itself, in the third of its calls."""

    def __init__(self, write):
        super().__init__()
        self.write, self.calls = write, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            self.write(self.ruled_out)
        return super().forward(x)


def trained_itself(write):
    torch.manual_seed(0)
    model = Ruling(write)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        loss = (model(torch.rand(5, 4)) * torch.arange(6.0)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize("write", [by_item, by_fill, by_mask, through_data])
def test_minus_infinity_that_a_module_lays_into_its_buffer_is_a_mask(work, write, level):
    worker = work(level=level)
    model = trained_itself(write)
    assert bool(model.ruled_out.isinf().any())
    assert worker.harms == []
    assert worker.looked == []


@pytest.mark.parametrize("level", ["step", "op"])
@pytest.mark.parametrize("write", [by_logarithm, with_nan])
def test_what_a_module_computes_into_its_buffer_is_none(work, write, level):
    worker = work(level=level, on_anomaly="continue")
    assert trained_itself(write)
    assert worker.harms
    assert worker.looked[0].site.line == write.__code__.co_firstlineno + (2 if write is with_nan else 1)


@pytest.mark.parametrize(("at", "harm"), [(math.inf, False), (-math.inf, False), (math.nan, True)])
def test_an_extreme_in_an_optimizers_state_that_begins_at_infinity_is_none(work, at, harm):
    worker = work(on_anomaly="continue")
    layer = nn.Linear(3, 1)
    optimizer = Least(layer.parameters(), at)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.rand(4, 3)).square().mean().backward()
        optimizer.step()
    assert bool(worker.harms) is harm
    assert worker.sentinel.looker.live.started is harm


def averaged(write, spoil=None, steps=8):
    """Train with a running average of all weights, which nobody trains; ``spoil`` may write into it."""
    torch.manual_seed(0)
    model, average = Codes(), Codes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        if step == 3:
            with torch.no_grad():
                write(model.trained)
        with torch.no_grad():
            target = average(torch.ones(5, 4)).sum()
        loss = (model(torch.rand(5, 4)) * torch.arange(6.0)).sum(-1).mean() + 0 * target
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.mul_(0.9).add_(new, alpha=0.1)
            if spoil is not None and step == 5:
                spoil(average)
    return model, average


def test_an_average_of_a_weight_with_a_mask_is_none(work):
    worker = work()
    kept = averaged(by_item)
    assert worker.harms == []
    assert kept


def test_an_average_that_is_bad_elsewhere_than_the_mask_is_told(work):
    def spoil(average):
        average.trained.add_(torch.log(torch.tensor([0.0] + [1.0] * 5)))

    worker = work()
    kept = averaged(by_item, spoil)
    assert [harm.what for harm in worker.harms] == ["frozen"]
    assert kept

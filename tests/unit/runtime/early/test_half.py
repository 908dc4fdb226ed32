"""float16's headroom: what is foretold is true, masks are none, and a look leaves no trace."""

import math

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

from nandiag.events import History, Warned
from nandiag.runtime.early.half.activations import ActivationLook
from nandiag.runtime.early.half.headroom import LARGEST, Headroom, trend_of
from nandiag.runtime.tape.noted import pace
from nandiag.settings import Thresholds

EVERY = {"thresholds": Thresholds(headroom_every=5)}


def foretold(sizes, every=50):
    headroom = Headroom(Thresholds())
    found = [(step, one) for step, size in enumerate(sizes) for one in headroom.add(step * every, {"a": size})]
    return [(step, facts) for step, (_, (_, facts)) in found]


def test_an_overflow_is_foretold_where_it_will_be():
    doubling, begin = 300, 500.0
    overflow = doubling * math.log2(LARGEST / begin)
    found = foretold([begin * 2 ** (step * 50 / doubling) for step in range(50) if step * 50 < overflow])
    step, facts = found[0]
    assert facts["doubling"] == pytest.approx(doubling, rel=0.01)
    assert step * 50 + facts["left"] == pytest.approx(overflow, abs=2)
    assert facts["left"] <= 1000


@pytest.mark.parametrize(
    "sizes",
    [
        [4.0 * 1.3**step for step in range(20)],  # grows, and is far from the end
        [50_000.0] * 30,  # a constant
        [8000.0 + 100 * (step % 5) for step in range(40)],  # high, and no growth
        [7000.0, 30_000.0, 9000.0],  # too few, not on a line
    ],
)
def test_nothing_is_foretold_without_a_reason(sizes):
    assert foretold(sizes) == []


def test_a_trend_needs_growth():
    assert trend_of([(0, 8.0), (1, 4.0), (2, 2.0)]) is None
    assert trend_of([(0, 8.0), (1, 8.0)]) is None
    assert trend_of([(0, 1.0), (10, 2.0), (20, 4.0)]) == pytest.approx((10.0, 1.0))


class Attention(nn.Module):
    """Logits that grow with a learned gain, and a mask over them."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.gain = nn.Parameter(torch.tensor(3.0))

    def forward(self, x, raises=False):
        if raises:
            raise KeyError("x")
        q = self.project(x)
        logits = (q * self.gain.exp()) @ q.transpose(-1, -2)
        mask = torch.ones(4, 4).triu(1).bool()
        logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
        return logits.softmax(-1) @ q


class Net(nn.Module):
    """One attention in a model."""

    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x, raises=False):
        return self.attn(x, raises).float()


def train(steps, *, grow=0.0, dtype=torch.float16, model=None):
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=dtype):
            loss = model(torch.randn(2, 4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.attn.gain += grow
    return [parameter.detach().clone() for parameter in model.parameters()]


def looked(worker):
    worker.sentinel.finish()
    return [value for value in worker.events(History)[-1].activation if value is not None]


def test_growing_logits_are_named(work):
    worker = work(**EVERY)
    train(75, grow=0.1)
    (found, *_) = [event for event in worker.events(Warned) if event.slug == "half_headroom"]
    assert found.name == "attn (matmul) of Net"
    assert 5 < found.facts["doubling"] < 9
    assert found.facts["share"] > 0.1
    assert max(looked(worker)) > 6000


def test_masks_at_the_end_of_the_range_are_none(work):
    worker = work(**EVERY)
    train(40)
    assert worker.events(Warned) == []
    assert 0 < max(looked(worker)) < 6000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_only_float16_is_looked_into(work, monkeypatch, dtype):
    made = []
    begin = ActivationLook.begin
    monkeypatch.setattr(ActivationLook, "begin", lambda self: (made.append(self), begin(self)))
    worker = work(**EVERY)
    train(40, dtype=dtype)
    assert bool(made) is bool(looked(worker)) is (dtype is torch.float16)


def test_a_model_that_enters_autocast_by_itself_is_known_by_its_scaler(work):
    worker = work(**EVERY)
    model = Net()
    model.attn.register_forward_pre_hook(lambda *_: torch.set_autocast_enabled("cpu", True))
    model.attn.register_forward_hook(lambda *_: torch.set_autocast_enabled("cpu", False))
    torch.set_autocast_dtype("cpu", torch.float16)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-6), torch.amp.GradScaler("cpu", init_scale=8.0)
    try:
        for _ in range(20):
            scaler.scale(model(torch.randn(2, 4, 8)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    assert max(looked(worker)) > 0


def test_a_look_leaves_no_trace(work):
    def traces():
        return (
            torch._C._len_torch_function_stack(), len(modules._global_forward_hooks),
            len(modules._global_forward_pre_hooks), len(modules._global_forward_hooks_always_called),
        )  # fmt: skip

    before = traces()
    torch.manual_seed(1)
    plain, state = train(20), torch.get_rng_state()
    torch.manual_seed(1)
    worker = work(**EVERY)
    watched = train(20)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert torch.equal(state, torch.get_rng_state())
    model = Net()
    worker.sentinel.early._half.due = 0
    with pytest.raises(KeyError), torch.autocast("cpu", dtype=torch.float16):
        model(torch.randn(2, 4, 8), raises=True)
    worker.capture.window.close()
    assert traces() == before


def test_a_fault_in_a_look_takes_it_away_all_the_same(work, monkeypatch):
    def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("nandiag.runtime.early.half.activations.ActivationLook._look", broken)
    worker = work(**EVERY)
    train(12)
    worker.capture.window.close()
    assert torch.overrides._get_current_function_mode_stack() == []
    assert len(modules._global_forward_hooks) == 0
    assert worker.sentinel.clock.step == 12


@pytest.mark.parametrize("short", [False, True])
def test_a_look_is_over_with_its_call(work, monkeypatch, short):
    """In short steps, whose calls are noted in another way, as in long ones."""
    monkeypatch.setattr(pace, "_SHORT", math.inf if short else 0.0)
    looks = []
    begin = ActivationLook.begin
    monkeypatch.setattr(ActivationLook, "begin", lambda self: (looks.append(self), begin(self)))
    work(**EVERY)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(30):
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(torch.randn(2, 4, 8))
        assert len(modules._global_forward_hooks) == 0
        assert not any(isinstance(one, ActivationLook) for one in torch.overrides._get_current_function_mode_stack())
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(looks) == 5


def test_what_is_compiled_is_not_looked_into(work, monkeypatch):
    monkeypatch.setattr("nandiag.runtime.early.half.turns.anything_compiled", lambda: True)
    worker = work(**EVERY)
    train(20)
    assert looked(worker) == []

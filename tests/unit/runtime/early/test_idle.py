"""Training that stands still: gradients of 0 and weights that do not change are told, what rests by design is not."""

import pytest
import torch
from torch import nn

from nandiag.analysis.early import line
from nandiag.events import ProbeDark, Warned
from nandiag.runtime.early.idle import weights
from nandiag.settings import Thresholds

IDLE = ("gradients_zero", "weights_unchanged")


def warned(worker):
    return [event for event in worker.events(Warned) if event.slug in IDLE]


def train(steps, *, change=None, spoil=None, make=torch.optim.SGD, lr=1e-2, dtype=torch.float32, loss_of=None, **known):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    optimizer = make(model.parameters(), lr=lr, **known)
    for step in range(steps):
        if change is not None:
            change(step, optimizer)
        x = torch.randn(16, 6, dtype=dtype)
        loss = (model(x) - x[:, :1]).square().mean()
        loss = loss if loss_of is None else loss_of(step, loss)
        optimizer.zero_grad()
        loss.backward()
        if spoil is not None:
            spoil(step, model)
        optimizer.step()


def clipped_by_infinity(step, model):
    if step >= 20:
        for parameter in model.parameters():
            parameter.grad.mul_(0.0)


def told(step, **numbers):
    """Return what tells the groups these numbers from ``step`` on."""

    def change(now, optimizer):
        if now >= step:
            for group in optimizer.param_groups:
                group.update(numbers)

    return change


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_gradients_that_are_all_0_for_long_are_told(work, make):
    worker = work()
    train(32, spoil=clipped_by_infinity, make=make)
    (found,) = warned(worker)
    assert (found.slug, found.step) == ("gradients_zero", 29)
    assert f"all gradients of {make.__name__} are exactly 0, for 10 steps in a row, while the loss is " in line(
        0, found
    )


def test_gradients_that_a_clip_leaves_at_0_are_told_with_the_norm_before_it(work):
    worker = work()
    train(32, spoil=lambda step, model: nn.utils.clip_grad_norm_(model.parameters(), 0.0 if step > 9 else 1.0))
    (found,) = warned(worker)
    assert "exactly 0 once they are clipped (their norm was " in line(0, found)


@pytest.mark.parametrize("after", [6, 40])
def test_weights_that_updates_leave_as_they_were_are_told(work, after):
    worker = work()
    train(after + 8, change=told(after, betas=(0.9, 1.0)), make=torch.optim.Adam, lr=1e-3)
    (found,) = warned(worker)
    assert (found.slug, found.step) == ("weights_unchanged", after + 5)
    assert "5 updates of Adam in a row did not change 0.weight and 3 more (65 values, float32): " in line(0, found)


def test_updates_that_half_precision_rounds_to_nothing_are_told(work):
    worker = work(thresholds=Thresholds(unchanged_every=4))
    train(20, dtype=torch.bfloat16, lr=1e-7)
    assert {one.slug for one in warned(worker)} == {"weights_unchanged"}


def flooded(step, loss):
    return loss * 0.0 if step > 5 else loss


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"make": torch.optim.Adam, "lr": 1e-3},
        {"change": told(5, lr=0.0)},  # a phase, or a schedule that ends
        {"change": told(5, lr=1e-9)},
        {"change": lambda step, optimizer: told(0, lr=1e-9 * step)(0, optimizer), "initial": 1e-2},
        {"loss_of": flooded},  # of a loss of 0 there is none
        {"spoil": lambda step, model: clipped_by_infinity(20 if step % 8 else 0, model)},  # not all of them
        {"spoil": lambda step, model: [one.grad.mul_(1e-9) for one in model.parameters() if step > 9]},
        {"change": told(9, weight_decay=1e-3)},
    ],
)
def test_what_rests_by_design_or_learns_is_silent(work, given):
    worker = work(thresholds=Thresholds(unchanged_every=4))
    initial = given.pop("initial", None) if isinstance(given, dict) else None
    if initial is not None:
        given = {"change": warm_up(initial)}
    train(40, **given)
    assert warned(worker) == []


def warm_up(most):
    def change(step, optimizer):
        told(0, lr=1e-9 * step, initial_lr=most)(0, optimizer)

    return change


def test_an_optimizer_that_rests_beside_one_that_learns_is_silent(work):
    worker = work(thresholds=Thresholds(unchanged_every=4))
    first, second = nn.Linear(6, 6), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-2) for one in (first, second)]
    for step in range(40):
        x = torch.randn(16, 6)
        made = first(x) if step < 9 else first(x).detach()
        loss = (second(made) - x[:, :1]).square().mean()
        for one in optimizers:
            one.zero_grad(set_to_none=False)
        loss.backward()
        for one in optimizers:
            one.step()
    assert warned(worker) == []


@pytest.mark.parametrize("way", ["restored", "clamped"])
def test_what_the_script_puts_back_between_two_updates_is_no_matter_of_these(work, way):
    """Test-time adaptation begins anew with each sample; a critic's weights are clamped behind each update."""
    worker = work(thresholds=Thresholds(unchanged_every=4))
    model = nn.Linear(6, 1)
    nn.init.constant_(model.weight, -0.01)
    base = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(40):
        if way == "restored":
            model.load_state_dict(base)
        optimizer.zero_grad()
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        if way == "clamped":
            with torch.no_grad():
                for one in model.parameters():
                    one.clamp_(-0.01, 0.01)
    assert warned(worker) == []


def test_where_no_gradient_was_ever_there_it_is_told_only_after_long(work):
    """No reward yet, or a term on its floor."""
    worker = work()
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(120):
        if step == 60:
            assert warned(worker) == []
        optimizer.zero_grad()
        (model(torch.ones(4, 6)).square().mean() * 0.0 + 1.0).backward()
        optimizer.step()
    assert [(one.slug, one.step) for one in warned(worker)] == [("gradients_zero", 99)]


def test_phases_that_rest_again_and_again_are_told_ever_more_seldom(work):
    worker = work()

    def rests(step, model):
        clipped_by_infinity(20 if step % 20 > 8 else 0, model)

    train(300, spoil=rests)
    assert [one.step for one in warned(worker)] == [18]


class Scaled(nn.Module):
    """A layer whose weights bfloat16 keeps near 0, and scales at 1 that it rounds each update of to nothing."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size, dtype=torch.bfloat16) * 1e-3)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(size, dtype=torch.bfloat16)) for _ in range(3)])

    def forward(self, x):
        for scale in self.scales:
            x = x * scale
        return x + x @ self.weight


def learn(module, steps, lr, *, make=torch.optim.AdamW, rows=None):
    optimizer = make(module.parameters(), lr=lr)
    for step in range(steps):
        x = torch.randn(8, 64, dtype=torch.bfloat16) if rows is None else rows(step)
        optimizer.zero_grad()
        (module(x).float() - 1.0).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("most", [1 << 20, 1024, 100, 3])
def test_what_does_not_fit_is_looked_at_in_part(work, monkeypatch, most):
    monkeypatch.setattr(weights, "_MOST_ELEMENTS", most)
    worker = work(thresholds=Thresholds(unchanged_every=4))
    learn(Scaled(64), 30, 1e-5)
    assert (worker.events(ProbeDark), warned(worker)) == ([], [])
    if most > 3:
        learn(Scaled(64), 30, 1e-9)
        (found, *_) = warned(worker)
        share = "4,288 values" if most > 1024 else f"looked at {found.facts['numel']:,} of 4,288 values"
        assert 0.5 * most <= found.facts["numel"] <= most or most > 4288
        assert f"did not change weight and 3 more ({share}, bfloat16)" in line(0, found)


def test_an_embedding_that_few_rows_are_used_of_is_silent(work, monkeypatch):
    monkeypatch.setattr(weights, "_MOST_ELEMENTS", 64)
    worker = work(thresholds=Thresholds(unchanged_every=4))
    learn(nn.Embedding(400, 4), 60, 0.1, make=torch.optim.SGD, rows=lambda step: torch.tensor([17 * step % 400]))
    assert (worker.events(ProbeDark), warned(worker)) == ([], [])


@pytest.mark.parametrize("shape", [(), (7,), (1100, 30), (3, 5000), (2, 3, 4, 50), (100_000,)])
@pytest.mark.parametrize("most", [1, 10, 1000])
def test_a_slice_has_about_as_many_elements_as_it_may(shape, most):
    data = torch.arange(max(1, torch.Size(shape).numel())).view(shape)
    taken = weights._sliced(data, weights._steps(data, most))
    assert min(data.numel(), most) / 2 < taken.numel() <= most or taken.numel() == data.numel() <= most
    assert taken.unique().numel() == taken.numel()


def test_what_is_due_while_gradients_are_far_below_their_peak_waits_for_a_while(work):
    """Else each step of what has learnt all would be told of at once, and the warnings asked in each."""
    worker = work(thresholds=Thresholds(unchanged_every=4))
    train(60, spoil=lambda step, model: [one.grad.mul_(1e-4) for one in model.parameters() if step >= 20])
    assert worker.sentinel.early.unchanged.due > 60
    assert not warned(worker)

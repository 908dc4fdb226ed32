"""What the script keeps from turn to turn, and that is bad: told beside the losses that are left out by it."""

import math

import pytest
import torch

from nandiag.runtime.look.finite import is_bad
from nandiag.runtime.tape.entry import Entry
from nandiag.runtime.watch.told.answers import kept, left_out
from tests.unit.runtime.watch.test_left_out import Loop, Running, line_of, of_running, skips


class Assigned(Running):
    """Makes it anew in each turn."""

    def __call__(self, x):
        self.mean = self.mean * 0.9 + 0.1 * x.mean()  # made anew
        return x - self.mean


class Smoothed(Running):
    """Scales by a loss that it smooths."""

    def __call__(self, x):
        self.mean = torch.lerp(self.mean, x.mean(), 0.1)  # smoothed
        return x / self.mean


@pytest.mark.parametrize(("scale", "words"), [(Assigned, "# made anew"), (Smoothed, "# smoothed")])
def test_what_is_made_anew_of_what_it_was_keeps_the_losses_bad(work, scale, words):
    worker, loop, scale = work(), Loop(), scale()
    for step in range(30):
        loss = of_running(loop, scale, step)
        if not torch.isfinite(loss):
            continue
        loop.update(loss)
    assert skips(worker)[0].look.facts["kept_bad"] == [f"{__file__}:{line_of(words, __file__)}"]


def test_what_is_bad_in_each_turn_by_itself_is_not_kept(work):
    worker, loop = work(), Loop(spoilt=range(3, 30))
    for step in range(30):
        loss = loop.loss(step)
        if not torch.isfinite(loss):
            continue
        loop.update(loss)
    assert "kept_bad" not in skips(worker)[0].look.facts


def anew(parts):
    total = torch.zeros(())
    for part in parts:
        total = total + part.sum()
    return total


def in_place(parts):
    total = torch.zeros(())
    for part in parts:
        total += part.sum()
    return total


@pytest.mark.parametrize("add_up", [anew, in_place])
def test_what_begins_anew_in_each_turn_is_not_kept(work, add_up):
    worker, loop, for_a_plot = work(), Loop(), []
    for step in range(30):
        x = torch.rand(3, 4)
        if step in loop.spoilt:
            x[1, 1] = math.inf
        for_a_plot.append(add_up(x.split(1)))
        loss = loop.net(torch.rand(3, 4)).square().mean() + for_a_plot[-1]
        if not torch.isfinite(loss):
            continue
        loop.update(loss)
    assert "kept_bad" not in skips(worker)[0].look.facts
    assert skips(worker)[0].total == 1


def test_what_is_made_finite_before_the_next_turn_is_given_it_is_not_kept(work):
    worker, loop, state = work(), Loop(), torch.ones(())
    for step in range(30):
        made = state * 0.9 + (math.inf if step > 3 else 1.0)
        state = made.clamp(max=9.0)
        loss = loop.net(torch.rand(3, 4)).square().mean() + made
        if not torch.isfinite(loss):
            continue
        loop.update(loss)
    assert skips(worker)[0].in_a_row > 1
    assert "kept_bad" not in skips(worker)[0].look.facts


def test_how_much_is_looked_at_for_what_is_kept_is_bounded(work, monkeypatch):
    """Returns that are added up over an episode, and all kept: each is made of all before."""
    worker, loop, looks, walked, every = work(), Loop(), [], [], []
    makers, kept_bad = Entry.makers, left_out.kept_bad

    def counted(*words):
        with monkeypatch.context() as patch:
            patch.setattr(kept, "is_bad", lambda tensor: looks.append(tensor) or is_bad(tensor))
            patch.setattr(Entry, "makers", property(lambda entry: walked.append(1) or makers.fget(entry)))
            return kept_bad(*words)

    monkeypatch.setattr(left_out, "kept_bad", counted)
    for step in range(6):
        with torch.no_grad():
            every[:] = [torch.full((), math.nan if step == 3 else 1.0)]
            for _ in range(500):
                every.append(every[-1] * 0.9)
        loss = loop.net(torch.rand(3, 4)).square().mean() + every[-1]
        if torch.isfinite(loss):
            loop.update(loss)
    assert skips(worker)[0].look is not None
    assert len(looks) < 600
    assert 0 < len(walked) < 20_000


class Mean:
    """Keeps the sum of the losses, and logs it now and then."""

    def __init__(self, ends, most):
        self.total, self.stop, self.ends, self.most = torch.zeros(()), False, ends, most

    def log(self, step):
        if step % 5 == 0:
            logs = {"loss": round(self.total.item() / 5, 4)}
            self.total -= self.total
            self.told(logs=logs)

    def told(self, logs=None):
        value = (logs or {}).get("loss")
        if self.ends and value is not None and not math.isfinite(value):
            self.stop = True

    def train(self, loop):
        step = 0
        while True:
            loss = loop.loss(step)
            self.total += loss.detach()
            if torch.isfinite(loss):
                loop.update(loss)
            step += 1
            self.log(step)
            if step >= self.most:
                break
            if self.stop:
                break


@pytest.mark.parametrize("spoilt", [10, 12])
@pytest.mark.parametrize("ends", [True, False])
def test_a_run_ends_by_a_mean_that_is_bad_since_a_loss_was_left_out(work, ends, spoilt):
    worker, loop = work(), Loop(spoilt=(spoilt,))
    Mean(ends, most=20).train(loop)
    worker.sentinel.finish()
    assert [one.what for one in worker.harms] == ["loss"] * ends
    assert [one.outcome for one in worker.looked] == ["found"] * ends
    assert skips(worker)[0].step == spoilt

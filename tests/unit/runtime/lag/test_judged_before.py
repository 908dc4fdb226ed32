"""Updates of fused optimizers that are judged before they are made: more hangs on them than a flag can hold back."""

import functools
import inspect
import math
import sys

import pytest
import torch
from torch.optim import optimizer as optimizers

from nandiag.runtime.lag import withheld
from nandiag.runtime.public import AnomalyStop
from tests.unit.runtime.lag.test_withheld import (  # noqa: F401
    MAKES,
    Loop,
    alike,
    as_at_the_start,
    bad,
    elsewhere,
    flags_seen,
    shown_alone,
    unwatched,
)


def own_hook(loop, _):
    loop.optimizer.register_step_post_hook(lambda *_: None)


def others_hook(_, monkeypatch):
    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", {**optimizers._global_optimizer_post_hooks})
    optimizers._global_optimizer_post_hooks[-1] = lambda *_: None


def not_fused(loop, _):
    loop.optimizer.param_groups[0]["fused"] = False


def of_a_scaler(loop, _):
    loop.optimizer.grad_scale = None


def own_kind(loop, _):
    class Own(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)

    loop.optimizer = Own(loop.model.parameters(), lr=1e-3, fused=True)


def own_update(_, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", own(torch.optim.AdamW.step))


def own_wrap(_, monkeypatch):
    original = torch.optim.AdamW.step
    wrap = functools.wraps(original)(lambda self, closure=None: original(self, closure))
    monkeypatch.setattr(torch.optim.AdamW, "step", wrap)


def own_parts(loop, _):
    loop.optimizer._init_group = loop.optimizer._init_group


def own(original):
    def function(*args, **kwargs):
        return original(*args, **kwargs)

    return function


def parts_of_all(_, monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "_init_group", own(torch.optim.Adam._init_group))


def own_kernel(_, monkeypatch):
    home = sys.modules["torch.optim.adam"]
    monkeypatch.setattr(home, "adam", own(home.adam))


WAYS = [own_hook, others_hook, not_fused, of_a_scaler, own_kind, own_update, own_wrap, own_parts, parts_of_all]


@pytest.mark.parametrize("changes", [*WAYS, own_kernel])
def test_what_may_hang_on_the_update_is_judged_before_it(changes, work, flags, monkeypatch):
    worker = work(on_anomaly="auto")
    loop = Loop()
    changes(loop, monkeypatch)
    with pytest.raises(AnomalyStop):
        loop.run(20, bad)
    assert flags == []
    assert worker.looked[0].outcome == "found"


@pytest.mark.parametrize("settings", [{"on_anomaly": "skip"}, {"level": "module"}, {"level": "op"}])
def test_other_ways_to_watch_judge_before_the_update(settings, work, flags):
    work(**settings)
    Loop().run(12, bad)
    assert flags == []


def with_a_scale(ours, _):
    ours._scale = torch.ones(())


def with_other_ranks(ours, monkeypatch):
    monkeypatch.setattr(type(ours.agreement), "possible", True)
    monkeypatch.setattr(ours, "_wants_company", lambda _: True)
    monkeypatch.setattr(ours, "_joint", lambda _: False)


@pytest.mark.parametrize("changes", [with_a_scale, with_other_ranks])
def test_where_more_than_this_rank_and_loss_counts_all_is_judged_before_it(changes, work, flags, monkeypatch):
    ours = work().sentinel
    loop = Loop().run(6)
    assert flags
    flags.clear()
    changes(ours, monkeypatch)
    loop.run(3)
    assert flags == []


def test_steps_of_which_stock_is_taken_are_judged_before_their_update(work, flags):
    work()
    Loop().run(13)
    assert [step for step, _ in flags] == [4, 5, 6, 7, 8, 9, 11, 12]


def test_a_step_behind_a_backward_that_was_left_out_is_judged_before_its_update(work, flags):
    work()
    loop = Loop().run(6)
    flags.clear()
    loop.model(loop.x).square().mean().backward()
    loop.optimizer.zero_grad()
    loop.run(2)
    assert [step for step, _ in flags] == [7]


def test_a_loss_that_stays_bad_over_finite_gradients_is_soon_judged_before_the_update(work, flags):
    plain = unwatched(20, shown_alone)
    work()
    watched = Loop().run(20, shown_alone)
    assert [up for _, up in flags].count(True) == withheld._IN_VAIN
    assert alike(watched.state(), plain.state())


def test_what_torch_calls_a_step_is_found_below_its_wraps(work):
    work()
    optimizer = Loop().optimizer
    code = inspect.unwrap(type(optimizer).step).__code__
    assert code.co_name == "step"
    assert code.co_filename.endswith("adam.py")


def test_an_update_that_torch_refuses_in_its_second_group_has_made_the_first(work, flags):
    """A sparse gradient ends it with an error, which the script passes over."""

    def trained():
        loop = Loop(MAKES["two groups"]).run(6)
        loop.model(loop.x).square().mean().mul(math.nan).backward()
        loop.model[2].weight.grad = loop.model[2].weight.grad.to_sparse()
        with pytest.raises(RuntimeError, match="sparse"):
            loop.optimizer.step()
        return loop

    plain = trained()
    as_at_the_start()
    worker = work(on_anomaly="continue")
    watched = trained()
    assert alike(watched.state(), plain.state())
    assert [one.what for one in worker.harms][:2] == ["loss", "gradient"]
    assert [step for step, _ in flags] == [4, 5]

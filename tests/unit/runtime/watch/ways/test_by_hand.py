"""Trials by a training whose updates are made by hand: what each trains anew is a tensor of its own."""

import math

import pytest
import torch


def ended(work, way):
    worker = work()
    way()
    worker.sentinel.last.at_exit()
    worker.sentinel.finish()
    return worker


def batches(*, bad):
    torch.manual_seed(0)
    for turn in range(6):
        yield torch.randn(3, 4), math.nan if turn == bad else 1.0


def loss_of(out, factor):
    """Return the loss, by a function more: of what makes it the innermost frames are known, and none is pytest's."""

    def weighted():
        return out.square().mean() * factor

    return weighted()


def fit(bad):
    w = torch.ones(4, 1, requires_grad=True)
    for x, factor in batches(bad=bad):
        loss = loss_of(x @ w, factor)
        if not torch.isfinite(loss):
            return None
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.01 * gradient
    return w


def tries_some():
    best = {}
    for bad in (None, None, 4):
        best[bad] = fit(bad)


def trains_in_epochs():
    w = torch.ones(4, 1, requires_grad=True)
    for epoch in range(3):
        for x, factor in batches(bad=4 if epoch == 2 else None):
            loss = loss_of(x @ w, factor)
            if not torch.isfinite(loss):
                break
            (gradient,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w -= 0.01 * gradient


def trains_one_after_the_other():
    fit(None)
    trains_in_epochs()


def fits_once():
    fit(4)


def test_a_trial_by_hand_that_is_given_up_is_one_of_some(work):
    assert ended(work, tries_some).harms == []


@pytest.mark.parametrize("way", [trains_in_epochs, trains_one_after_the_other, fits_once])
def test_a_training_by_hand_that_is_given_up_is_no_trial(work, way):
    assert [one.what for one in ended(work, way).harms] == ["loss"]

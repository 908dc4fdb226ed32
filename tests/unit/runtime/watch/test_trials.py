"""Points that an optimizer tries within a step: one that it leaves is no harm, however bad it was there."""

import pytest
import torch
from torch import nn

from nandiag.events import Skipped
from nandiag.runtime.public import AnomalyStop


class Interval(nn.Module):
    """The likelihood of an interval: where a long step is tried it underflows to 0."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(3, 1)
        self.ls = nn.Parameter(torch.zeros(()))

    def forward(self, x, lo, hi):
        mean, scale = self.f(x).squeeze(1), self.ls.exp()
        normal = torch.distributions.Normal(0.0, 1.0)
        share = normal.cdf((hi - mean) / scale) - normal.cdf((lo - mean) / scale)
        return -share.log().mean()  # the line


def searched(steps=10, bad_in=None):
    """Fit by LBFGS with a line search, whose very first step tries what is infinite; returns losses and weights."""
    torch.manual_seed(0)
    model, losses, tried = Interval(), [], []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=5, line_search_fn="strong_wolfe")
    for step in range(steps):
        x = torch.randn(40, 3)
        low = (x @ torch.tensor([1.0, -0.5, 0.2]) + 0.4 * torch.randn(40)).floor()
        low[7] = 90.0 if step == bad_in else low[7]

        def closure(x=x, low=low):
            optimizer.zero_grad()
            loss = model(x, low, low + 1)
            loss.backward()
            tried.append(loss.item())
            return loss

        losses.append(optimizer.step(closure).item())
    return losses, tried, [one.detach().clone() for one in model.parameters()]


def test_a_point_that_a_line_search_leaves_is_no_harm(work):
    losses, tried, weights = searched()
    assert torch.inf in tried
    assert torch.inf not in losses
    worker = work(on_anomaly="auto")
    assert searched()[:2] == (losses, tried)
    assert all(map(torch.equal, searched()[2], weights))
    worker.sentinel.finish()
    assert not worker.harms
    assert not worker.looked
    assert not worker.events(Skipped)  # the closure reads its loss: none is left out by that


def test_the_harm_of_a_later_step_is_told_with_its_line(work):
    worker = work(on_anomaly="auto")
    with pytest.raises(AnomalyStop):
        searched(bad_in=6)
    assert {harm.step for harm in worker.harms} == {6}
    (looked,) = worker.looked
    assert (looked.outcome, looked.step, looked.site.source.rstrip()[-10:]) == ("found", 6, "# the line")


class Tries(torch.optim.Optimizer):
    """Moves along the gradient, and back where ``leaves`` and the loss there is bad."""

    def __init__(self, parameters, *, leaves, raises=False):
        super().__init__(parameters, {})
        self.leaves, self.raises = leaves, raises

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        first = closure()
        (weight,) = self.param_groups[0]["params"]
        before = weight.clone()
        weight.sub_(weight.grad)
        second = closure()
        if self.raises and not second.isfinite():
            raise ValueError("no way down")
        if self.leaves and not second.isfinite():
            weight.copy_(before).mul_(0.99)
        elif self.leaves is None:
            weight.sub_(weight.grad)
        return first


def tried(steps=8, **options):
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = Tries([weight], **options)
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            loss = ((weight - 0.4).sqrt() + 4 * weight).sum()  # the root
            loss.backward()
            return loss

        optimizer.step(closure)
    return weight


def test_what_an_optimizer_of_the_scripts_own_leaves_is_no_harm_and_counts_for_no_replay(work):
    worker = work(on_anomaly="stop")
    left = worker.sentinel.looker.examiner.left
    assert tried(leaves=True).isfinite().all()
    worker.sentinel.finish()
    assert not worker.harms
    assert not worker.looked
    assert worker.sentinel.looker.examiner.left == left


@pytest.mark.parametrize("leaves", [False, None])
def test_a_step_that_ends_at_the_bad_point_or_goes_on_from_it_is_harm(work, leaves):
    worker = work(on_anomaly="stop")
    with pytest.raises(AnomalyStop):
        tried(leaves=leaves)
    assert worker.harms[0].step == 0
    looked = worker.looked[0]
    assert (looked.outcome, looked.source, looked.site.source.rstrip()[-10:]) == ("found", "op", "# the root")


def test_a_step_that_raises_at_the_bad_point_leaves_its_harm_told(work):
    worker = work(on_anomaly="stop")
    with pytest.raises(ValueError, match="no way down"):
        tried(leaves=False, raises=True)
    worker.sentinel.finish()
    assert worker.harms[0].what == "loss"
    assert worker.looked[0].site.source.rstrip().endswith("# the root")
